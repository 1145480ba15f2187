"""The OPTM and ERM mechanisms."""
