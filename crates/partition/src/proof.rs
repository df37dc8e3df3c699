//! Why `balanced` is right.
