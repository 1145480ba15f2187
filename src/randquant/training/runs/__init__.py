"""One run: its folder, its log, its page, and how it resumes."""
