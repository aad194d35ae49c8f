"""Where checks of machines were in version 0.1, named by batch scripts. Gone in the next release."""
