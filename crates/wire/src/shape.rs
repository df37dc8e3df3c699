//! The dimensions of a tensor, borrowed from the sender's slice or from a frame.

/// The dimensions of a tensor.
///
/// # Examples
/// ```
/// use brigade_wire::Shape;
///
/// let shape = Shape::from(&[2, 3, 4]);
/// assert_eq!((shape.rank(), shape.n_elements()), (3, Some(24)));
/// assert_eq!(shape.to_string(), "[2, 3, 4]");
/// ```
#[derive(Clone, Copy)]
pub struct Shape<'a>(Repr<'a>);

#[derive(Clone, Copy)]
enum Repr<'a> {
    Native(&'a [usize]),
    /// Little-endian numbers of a frame, each of which fits a `usize`.
    Wire(&'a [[u8; 8]]),
}

impl<'a> Shape<'a> {
    /// A shape from the bytes of a frame; `None` when a dimension does not fit a `usize`.
    pub(crate) fn from_wire(dims: &'a [[u8; 8]]) -> Option<Self> {
        let fits = dims.iter().all(|dim| usize::try_from(u64::from_le_bytes(*dim)).is_ok());
        fits.then_some(Self(Repr::Wire(dims)))
    }

    /// Number of dimensions.
    #[must_use]
    pub const fn rank(self) -> usize {
        match self.0 {
            Repr::Native(dims) => dims.len(),
            Repr::Wire(dims) => dims.len(),
        }
    }

    /// The dimensions in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = usize> + 'a {
        (0..self.rank()).map(move |index| match self.0 {
            Repr::Native(dims) => dims.get(index).copied().unwrap_or_default(),
            Repr::Wire(dims) => dims
                .get(index)
                .map(|dim| u64::from_le_bytes(*dim))
                .and_then(|dim| usize::try_from(dim).ok())
                .unwrap_or_default(),
        })
    }

    /// The dimensions as a vector.
    #[must_use]
    pub fn to_vec(self) -> Vec<usize> {
        self.iter().collect()
    }

    /// Number of elements; 0 as soon as one dimension is, `None` when the number exceeds a `u64`.
    #[must_use]
    pub fn n_elements(self) -> Option<u64> {
        if self.iter().any(|dim| dim == 0) {
            return Some(0);
        }
        self.iter().try_fold(1_u64, |product, dim| product.checked_mul(u64::try_from(dim).ok()?))
    }
}

impl<'a> From<&'a [usize]> for Shape<'a> {
    fn from(dims: &'a [usize]) -> Self {
        Self(Repr::Native(dims))
    }
}

impl<'a, const N: usize> From<&'a [usize; N]> for Shape<'a> {
    fn from(dims: &'a [usize; N]) -> Self {
        Self(Repr::Native(dims))
    }
}

impl<'a> From<&'a Vec<usize>> for Shape<'a> {
    fn from(dims: &'a Vec<usize>) -> Self {
        Self(Repr::Native(dims))
    }
}

impl PartialEq for Shape<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Shape<'_> {}

impl std::fmt::Debug for Shape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl std::fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}
