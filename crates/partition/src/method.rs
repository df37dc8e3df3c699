//! `PartitionMethod`: the ways to weigh layers, with a text form.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Cuts, MethodError};

/// Says how layers are weighed, or where they are cut.
///
/// | text | meaning |
/// | --- | --- |
/// | `uniform` | the same number of layers on every stage |
/// | `parameters` | balance the trainable parameters |
/// | `type:REGEX` | balance the number of layers whose type name the pattern finds |
/// | `weights:3,1,2` | balance these weights, one a layer |
/// | `weights:embed=2,block=1` | balance weights given by type name |
/// | `profile` | balance the measured times |
/// | `cuts:0,3,7` | cut here |
///
/// The word before the colon is read in any case; what stands after it is taken as it is. The text form
/// and the value convert into each other without loss.
///
/// # Source
///
/// DeepSpeed, `PipelineModule._partition_layers`, for the first three and for `profile`, which it names
/// but does not implement.
///
/// # Examples
///
/// ```
/// use brigade_partition::PartitionMethod;
///
/// let method: PartitionMethod = "type:Block|Head".parse()?;
/// assert_eq!(method, PartitionMethod::Type("Block|Head".into()));
/// assert_eq!(method.to_string(), "type:Block|Head");
/// # Ok::<(), brigade_partition::MethodError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum PartitionMethod {
    /// The same number of layers on every stage.
    Uniform,
    /// Weighs a layer by its trainable parameters.
    Parameters,
    /// Weighs a layer 1 when the pattern is found in its type name, in any case, and 0 otherwise.
    Type(String),
    /// Weighs each layer as the list says.
    Weights(WeightList),
    /// Weighs a layer by the first entry whose name is a part of its type name, in any case, and 0 when
    /// there is none.
    TypeWeights(Vec<(String, Number)>),
    /// Weighs a layer by its measured time.
    Profile,
    /// Cuts at these boundaries.
    Cuts(Cuts),
}

/// Holds one weight as it was written: a whole number stays exact whatever its size.
///
/// # Examples
///
/// ```
/// use brigade_partition::Number;
///
/// assert_eq!("9007199254740993".parse(), Ok(Number::Whole(9_007_199_254_740_993)));
/// assert_eq!("0.5".parse(), Ok(Number::Real(0.5)));
/// assert_eq!(Number::Real(2.0).to_string(), "2.0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
}

/// Holds one weight a layer, all whole or all floats.
///
/// # Examples
///
/// ```
/// use brigade_partition::{PartitionMethod, WeightList};
///
/// let method = PartitionMethod::Weights(WeightList::Whole(vec![3, 1, 2]));
/// assert_eq!(method.to_string(), "weights:3,1,2");
/// assert_eq!("weights:3,1,2.5".parse(), Ok(PartitionMethod::Weights(WeightList::Real(vec![3.0, 1.0, 2.5]))));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum WeightList {
    /// Whole numbers.
    Whole(Vec<u64>),
    /// Floats.
    Real(Vec<f64>),
}

impl PartitionMethod {
    fn parse_weights(list: &str) -> Result<Self, MethodError> {
        if list.contains('=') {
            let entry = |entry: &str| {
                let (name, number) =
                    entry.rsplit_once('=').ok_or_else(|| MethodError::Entry { entry: entry.to_owned() })?;
                if name.is_empty() || name.contains('=') {
                    return Err(MethodError::Entry { entry: entry.to_owned() });
                }
                Ok((name.to_owned(), number.parse()?))
            };
            return list.split(',').map(entry).collect::<Result<_, _>>().map(Self::TypeWeights);
        }
        let numbers: Vec<Number> = if list.is_empty() {
            Vec::new()
        } else {
            list.split(',').map(str::parse).collect::<Result<_, _>>()?
        };
        Ok(Self::Weights(WeightList::from(numbers)))
    }

    fn parse_cuts(list: &str) -> Result<Self, MethodError> {
        let boundary =
            |text: &str| text.parse::<usize>().map_err(|_| MethodError::Boundary { text: text.to_owned() });
        let boundaries = list.split(',').map(boundary).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::Cuts(Cuts::new(boundaries)?))
    }
}

impl FromStr for PartitionMethod {
    type Err = MethodError;

    /// Reads the text form.
    fn from_str(text: &str) -> Result<Self, MethodError> {
        let (word, rest) = match text.split_once(':') {
            Some((word, rest)) => (word, Some(rest)),
            None => (text, None),
        };
        match (word.to_ascii_lowercase().as_str(), rest) {
            ("uniform", None) => Ok(Self::Uniform),
            ("parameters", None) => Ok(Self::Parameters),
            ("profile", None) => Ok(Self::Profile),
            ("type", Some(pattern)) => {
                crate::pattern::TypePattern::new(pattern)?;
                Ok(Self::Type(pattern.to_owned()))
            }
            ("weights", Some(list)) => Self::parse_weights(list),
            ("cuts", Some(list)) => Self::parse_cuts(list),
            _ => Err(MethodError::Unknown { text: text.to_owned() }),
        }
    }
}

/// Writes the text form.
impl fmt::Display for PartitionMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Parameters => f.write_str("parameters"),
            Self::Profile => f.write_str("profile"),
            Self::Type(pattern) => write!(f, "type:{pattern}"),
            Self::Cuts(cuts) => write!(f, "cuts:{cuts}"),
            Self::Weights(WeightList::Whole(list)) => {
                joined(f, list.iter().map(|&weight| Number::Whole(weight)))
            }
            Self::Weights(WeightList::Real(list)) => {
                joined(f, list.iter().map(|&weight| Number::Real(weight)))
            }
            Self::TypeWeights(list) => {
                joined(f, list.iter().map(|(name, number)| format!("{name}={number}")))
            }
        }
    }
}

fn joined(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = impl fmt::Display>) -> fmt::Result {
    f.write_str("weights:")?;
    for (position, item) in items.enumerate() {
        let separator = if position == 0 { "" } else { "," };
        write!(f, "{separator}{item}")?;
    }
    Ok(())
}

impl TryFrom<String> for PartitionMethod {
    type Error = MethodError;

    fn try_from(text: String) -> Result<Self, MethodError> {
        text.parse()
    }
}

impl From<PartitionMethod> for String {
    fn from(method: PartitionMethod) -> Self {
        method.to_string()
    }
}

impl Number {
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Self::Whole(number) => crate::weight::to_f64(number.into()),
            Self::Real(number) => number,
        }
    }
}

impl FromStr for Number {
    type Err = MethodError;

    fn from_str(text: &str) -> Result<Self, MethodError> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Whole(number));
        }
        match text.parse() {
            Ok(number) if f64::is_finite(number) => Ok(Self::Real(number)),
            _ => Err(MethodError::Number { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(f, "{number}"),
            // The debug form keeps the point of 2.0, which makes it a float when read again.
            Self::Real(number) => write!(f, "{number:?}"),
        }
    }
}

impl From<Vec<Number>> for WeightList {
    /// Keeps whole numbers whole when all of them are.
    fn from(numbers: Vec<Number>) -> Self {
        let whole = |number: &Number| match number {
            Number::Whole(number) => Some(*number),
            Number::Real(_) => None,
        };
        match numbers.iter().map(whole).collect() {
            Some(list) => Self::Whole(list),
            None => Self::Real(numbers.into_iter().map(Number::to_f64).collect()),
        }
    }
}
