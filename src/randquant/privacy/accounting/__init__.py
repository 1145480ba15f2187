"""What a whole run reveals: releases, composition, sampling."""
