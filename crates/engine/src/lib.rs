//! Part of Brigade.
