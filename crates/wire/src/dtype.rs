//! Element types of tensors, with their sizes and their numbers in DeepSpeed.

use crate::error::DTypeError;

/// The element type of a tensor: those of Burn 0.22 and of DeepSpeed's table.
///
/// # Examples
/// ```
/// use brigade_wire::DType;
///
/// assert_eq!(DType::BF16.size(), Some(2));
/// assert_eq!(DType::BF16.deepspeed_id(), Some(5));
/// assert_eq!(DType::from_deepspeed_id(5)?, DType::BF16);
/// assert_eq!(DType::Quantized { scheme: b"q4s block 32" }.size(), None);
/// # Ok::<(), brigade_wire::DTypeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType<'a> {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 32-bit float that a kernel may compute with less precision.
    Flex32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 64-bit unsigned integer.
    U64,
    /// 32-bit unsigned integer.
    U32,
    /// 16-bit unsigned integer.
    U16,
    /// 8-bit unsigned integer.
    U8,
    /// Truth value in one byte, 0 or 1.
    Bool,
    /// Truth value in one byte, any non-zero being true.
    BoolU8,
    /// Truth value in four bytes.
    BoolU32,
    /// Two 32-bit floats.
    Complex64,
    /// Two 64-bit floats.
    Complex128,
    /// Packed, sub-byte or quantised elements: the payload is opaque here, and the scheme says how to
    /// read it. Shape and number of bytes are independent of one another.
    Quantized {
        /// The scheme in whatever form sender and receiver agree on.
        scheme: &'a [u8],
    },
}

/// DeepSpeed's numbers: the position is the id.
const DEEPSPEED: [DType<'static>; 12] = [
    DType::F32,
    DType::F64,
    DType::Complex64,
    DType::Complex128,
    DType::F16,
    DType::BF16,
    DType::U8,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::Bool,
];

/// The types with a fixed size; the position is the code in a frame, and never changes.
const FIXED: [(DType<'static>, u64, &str); 18] = [
    (DType::F64, 8, "f64"),
    (DType::F32, 4, "f32"),
    (DType::Flex32, 4, "flex32"),
    (DType::F16, 2, "f16"),
    (DType::BF16, 2, "bf16"),
    (DType::I64, 8, "i64"),
    (DType::I32, 4, "i32"),
    (DType::I16, 2, "i16"),
    (DType::I8, 1, "i8"),
    (DType::U64, 8, "u64"),
    (DType::U32, 4, "u32"),
    (DType::U16, 2, "u16"),
    (DType::U8, 1, "u8"),
    (DType::Bool, 1, "bool"),
    (DType::BoolU8, 1, "bool(u8)"),
    (DType::BoolU32, 4, "bool(u32)"),
    (DType::Complex64, 8, "complex64"),
    (DType::Complex128, 16, "complex128"),
];

/// The code of a quantised tensor in a frame.
const QUANTIZED: u8 = 255;

impl<'a> DType<'a> {
    /// All types with a fixed size.
    pub fn fixed() -> impl ExactSizeIterator<Item = Self> {
        FIXED.iter().map(|&(dtype, _, _)| dtype)
    }

    /// Bytes of one element; `None` where only the scheme can tell.
    #[must_use]
    pub fn size(self) -> Option<u64> {
        self.row().map(|(size, _)| size)
    }

    /// The name that Burn uses, and PyTorch's for complex numbers.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("quantized", |(_, name)| name)
    }

    /// The number in DeepSpeed's dtype table, if it has one.
    ///
    /// # Source
    /// DeepSpeed 0.19.6, `runtime/pipe/engine.py`, `PipelineEngine.ID_TO_DTYPE`.
    #[must_use]
    pub fn deepspeed_id(self) -> Option<u8> {
        DEEPSPEED.iter().position(|&dtype| dtype == self).and_then(|id| u8::try_from(id).ok())
    }

    /// The type of a number in DeepSpeed's dtype table.
    ///
    /// # Errors
    /// [`DTypeError::DeepSpeedId`] for a number beyond the table.
    ///
    /// # Source
    /// As [`Self::deepspeed_id`].
    pub fn from_deepspeed_id(id: u8) -> Result<Self, DTypeError> {
        DEEPSPEED.get(usize::from(id)).copied().ok_or(DTypeError::DeepSpeedId { id })
    }

    /// The code in a frame.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::F64 => 0,
            Self::F32 => 1,
            Self::Flex32 => 2,
            Self::F16 => 3,
            Self::BF16 => 4,
            Self::I64 => 5,
            Self::I32 => 6,
            Self::I16 => 7,
            Self::I8 => 8,
            Self::U64 => 9,
            Self::U32 => 10,
            Self::U16 => 11,
            Self::U8 => 12,
            Self::Bool => 13,
            Self::BoolU8 => 14,
            Self::BoolU32 => 15,
            Self::Complex64 => 16,
            Self::Complex128 => 17,
            Self::Quantized { .. } => QUANTIZED,
        }
    }

    /// The type of a code in a frame; the scheme is that of a quantised tensor, and empty otherwise.
    pub(crate) fn from_code(code: u8, scheme: &'a [u8]) -> Option<Self> {
        match FIXED.get(usize::from(code)) {
            Some(&(dtype, _, _)) if scheme.is_empty() => Some(dtype),
            None if code == QUANTIZED => Some(Self::Quantized { scheme }),
            _ => None,
        }
    }

    /// The scheme of a quantised tensor, and nothing otherwise.
    pub(crate) const fn scheme(self) -> &'a [u8] {
        match self {
            Self::Quantized { scheme } => scheme,
            _ => &[],
        }
    }

    fn row(self) -> Option<(u64, &'static str)> {
        FIXED.get(usize::from(self.code())).map(|&(_, size, name)| (size, name))
    }
}

impl std::fmt::Display for DType<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_positions_and_come_back() {
        for (position, dtype) in DType::fixed().enumerate() {
            assert_eq!(usize::from(dtype.code()), position);
            assert_eq!(DType::from_code(dtype.code(), &[]), Some(dtype));
            assert_eq!(DType::from_code(dtype.code(), b"scheme"), None);
        }
        let quantized = DType::Quantized { scheme: b"s" };
        assert_eq!(DType::from_code(quantized.code(), b"s"), Some(quantized));
        for code in 18..255 {
            assert_eq!(DType::from_code(code, &[]), None);
        }
    }
}
