//! Slapo's helpers for logs and liveness: a structure without its values, and names for its items.

use crate::tree::Tree;

/// How [`nested_list_string`] shows a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TensorText {
    /// The dimensions.
    pub shape: Vec<usize>,
    /// The value of a tensor of shape `[1]`, if it is at hand; other tensors show their shape.
    pub item: Option<String>,
}

/// A float as Python prints it: the shortest digits that give it back, `1e+300`, `inf`, `nan`.
pub(crate) fn float_repr<F>(value: F) -> String
where
    F: Copy + Into<f64> + PartialEq + std::str::FromStr + std::fmt::Display + std::fmt::LowerExp,
{
    let wide: f64 = value.into();
    if !wide.is_finite() {
        return wide.to_string().to_lowercase();
    }
    let shortest = format!("{value:e}");
    // Of two shortest forms that are equally near, Python takes the even one and Rust the larger.
    let n_decimals = shortest
        .bytes()
        .take_while(|&byte| byte != b'e')
        .filter(u8::is_ascii_digit)
        .count()
        .saturating_sub(1);
    let even = format!("{value:.n_decimals$e}");
    let is_same = even.parse::<F>().is_ok_and(|parsed| parsed == value);
    let scientific = if is_same { even } else { shortest };
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Ok(exponent) if is_same => {
            let n_decimals = i32::try_from(n_decimals).unwrap_or(i32::MAX).saturating_sub(exponent);
            format!("{value:.*}", usize::try_from(n_decimals).unwrap_or(0).max(1))
        }
        _ => {
            let plain = value.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

/// Writes the nesting of a tree for a log, with shapes in place of tensors.
///
/// Lists and tuples look alike, as in Slapo. Strings, bytes and dicts, which Slapo refuses, are quoted,
/// counted and in braces.
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `get_simple_nested_list_str`.
///
/// # Examples
/// ```
/// use brigade_wire::{TensorText, Tree, nested_list_string};
///
/// let tree = Tree::from((Tree::Tensor(vec![2, 3]), [Tree::Tensor(vec![1])], 1e300, None::<bool>));
/// let text = nested_list_string(&tree, |shape: &Vec<usize>| {
///     let item = (*shape == [1]).then(|| "0.5".to_owned());
///     TensorText { shape: shape.clone(), item }
/// });
/// assert_eq!(text, "[tensor(2, 3),[scalar(0.5)],1e+300,None]");
/// ```
#[doc(alias = "get_simple_nested_list_str")]
pub fn nested_list_string<T>(tree: &Tree<T>, mut describe: impl FnMut(&T) -> TensorText) -> String {
    let mut text = String::new();
    put(&mut text, tree, &mut describe);
    text
}

fn put<T>(text: &mut String, tree: &Tree<T>, describe: &mut dyn FnMut(&T) -> TensorText) {
    match tree {
        Tree::Tensor(tensor) => match describe(tensor) {
            TensorText { shape, item: Some(item) } if shape == [1] => {
                text.push_str(&format!("scalar({item})"))
            }
            TensorText { shape, .. } => {
                let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
                let comma = if dims.len() == 1 { "," } else { "" };
                text.push_str(&format!("tensor({}{comma})", dims.join(", ")));
            }
        },
        Tree::List(items) | Tree::Tuple(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                put(text, item, describe);
            }
            text.push(']');
        }
        Tree::Dict(dict) => {
            text.push('{');
            for (index, (key, value)) in dict.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&format!("{key}:"));
                put(text, value, describe);
            }
            text.push('}');
        }
        Tree::None => text.push_str("None"),
        Tree::Bool(value) => text.push_str(if *value { "True" } else { "False" }),
        Tree::I64(value) => text.push_str(&value.to_string()),
        Tree::U64(value) => text.push_str(&value.to_string()),
        Tree::F32(value) => text.push_str(&float_repr(*value)),
        Tree::F64(value) => text.push_str(&float_repr(*value)),
        Tree::Str(value) => text.push_str(&format!("{value:?}")),
        Tree::Bytes(value) => text.push_str(&format!("<{} bytes>", value.len())),
    }
}

/// Names a stage's output and its items: `s0`, then `s0.0`, `s0.1`, `s0.1.0` and so on.
///
/// The items of a list or tuple are named when one of them is a tensor, and not otherwise; a dict is
/// named as one value. These are the names that [`liveness`](crate::liveness()) works with.
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `flat_and_name_tensor_list`.
///
/// # Examples
/// ```
/// use brigade_wire::{Tree, flat_and_name};
///
/// let output = Tree::from((Tree::Tensor("h"), (Tree::Tensor("k"), 1_i64), [true]));
/// let names: Vec<String> = flat_and_name(&output, "s0").into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["s0", "s0.0", "s0.1", "s0.1.0", "s0.1.1", "s0.2"]);
/// ```
#[doc(alias = "flat_and_name_tensor_list")]
#[must_use]
pub fn flat_and_name<'a, T>(tree: &'a Tree<T>, name: &str) -> Vec<(String, &'a Tree<T>)> {
    let mut named = Vec::new();
    push(&mut named, tree, name.to_owned());
    named
}

fn push<'a, T>(named: &mut Vec<(String, &'a Tree<T>)>, tree: &'a Tree<T>, name: String) {
    let at = named.len();
    named.push((name, tree));
    let (Tree::List(items) | Tree::Tuple(items)) = tree else { return };
    if items.iter().any(|item| matches!(item, Tree::Tensor(_))) {
        for (index, item) in items.iter().enumerate() {
            let name = named.get(at).map(|(name, _)| format!("{name}.{index}")).unwrap_or_default();
            push(named, item, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[test]
    fn floats_look_as_in_python() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1.0, "1.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e300, "1e+300"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float_repr(value), text);
        }
        assert_eq!(float_repr(0.1_f32), "0.1");
        assert_eq!(float_repr(f32::MAX), "3.4028235e+38");
    }
}
