"""placeholder"""
def write_page(folder, found): pass
