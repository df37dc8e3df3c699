//! Inputs that once went wrong; each test tells its story.
