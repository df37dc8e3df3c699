//! What Slapo itself computes: equal wherever Slapo is lossless, lossless wherever it is not.
//!
//! Where ours differs, it does so by these rules:
//! - **Structure.** Lists, dicts, strings, empty containers at an end, a top that is a leaf or empty: Slapo
//!   changes or refuses them. Ours keeps them; its text is then in the extended form, and strict mode refuses.
//! - **Values.** Python floats that are no `f32` and integers beyond `i64`: Slapo rounds or raises. Ours keeps
//!   them in the leaf; the text, which holds no values, is Slapo's.
//! - **No tree of ours.** Integers beyond 64 bits, for which Slapo raises too; complex numbers, foreign objects
//!   and dict keys that are neither strings nor integers.
//! - **Limits.** Deeper trees, and more implied empty tuples, than `limits` allows are refused.
//! - **Texts that Slapo's `flatten` never sends**: paths that are not positions, stand twice or out of order,
//!   codes 3 and 4 or unknown ones. Slapo's decoder takes them and fails, or overwrites, later; ours refuses.
//! - **Arguments of `unflatten`** that are not leaves of the kind that the code says: Slapo passes them through.

use brigade_wire::limits::{MAX_DEPTH, MAX_IMPLIED};
use brigade_wire::{
    DecodeOptions, Dialect, Dict, Direction, EncodeOptions, Header, Key, Leaf, LeafKind, Metadata, Shape,
    Tag, TensorText, TensorView, Tree, decode, decode_metadata, encode, encode_metadata, flat_and_name,
    flatten, nested_list_string, unflatten,
};
use serde_json::{Value, json};

/// A tensor of the golden data, by its JSON.
type Json = Value;

fn golden() -> Value {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden").to_owned();
    let folder = std::env::var("BRIGADE_GOLDEN").unwrap_or(default);
    let path = std::path::Path::new(&folder).join("wire.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // A case is a line. One that the JSON reader finds too deep is deeper than half of that in our trees, and
    // stands for nothing that the limits do not say: it is left out by name.
    let lines = text.lines().map(|line| {
        if nesting(line) < 120 {
            return line;
        }
        report(&format!("too deep for the JSON reader: {}", line.get(..60).unwrap_or(line)));
        if line.ends_with(',') { "null," } else { "null" }
    });
    serde_json::from_str(&lines.collect::<String>()).unwrap()
}

/// The largest number of brackets that are open in a line of JSON.
fn nesting(line: &str) -> usize {
    let (mut open, mut most, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in line.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => open += 1,
            b']' | b'}' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[expect(clippy::print_stdout, reason = "the number of golden cases is to be seen with --nocapture")]
fn report(line: &str) {
    println!("{line}");
}

/// The entries of a list, which must not be empty.
fn list<'a>(golden: &'a Value, name: &str) -> Vec<&'a Value> {
    let entries = golden[name].as_array().unwrap_or_else(|| panic!("wire.json has no list `{name}`"));
    let entries: Vec<&Value> = entries.iter().filter(|entry| !entry.is_null()).collect();
    assert!(!entries.is_empty(), "`{name}` is empty");
    report(&format!("wire.json {name}: {} cases", entries.len()));
    entries
}

fn float(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        number => number.as_f64().unwrap(),
    }
}

/// The one key and value of a JSON object.
fn only(value: &Value) -> (&str, &Value) {
    let (kind, content) = value.as_object().unwrap().iter().next().unwrap();
    (kind, content)
}

/// Why a Python value is no tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoTree {
    WideInteger,
    Foreign,
}

fn integer_key(digits: &str) -> Option<Key> {
    digits.parse().map(Key::I64).or_else(|_| digits.parse().map(Key::U64)).ok()
}

/// A value of the golden data as a tree, or why there is no such tree.
fn tree(value: &Value) -> Result<Tree<Json>, NoTree> {
    let (kind, content) = only(value);
    let items = || content.as_array().unwrap().iter().map(tree).collect::<Result<Vec<_>, _>>();
    Ok(match kind {
        "tensor" => Tree::Tensor(content.clone()),
        "none" => Tree::None,
        "bool" => Tree::Bool(content.as_bool().unwrap()),
        "float" => Tree::F64(float(content)),
        "str" => Tree::Str(content.as_str().unwrap().to_owned()),
        "int" => {
            let digits = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
            let wide: i128 = digits.parse().map_err(|_| NoTree::WideInteger)?;
            Tree::try_from(wide).map_err(|_| NoTree::WideInteger)?
        }
        "list" => Tree::List(items()?),
        "tuple" => Tree::Tuple(items()?),
        "dict" => {
            let entries = content.as_array().unwrap().iter().map(|entry| {
                let key = match &entry[0] {
                    Value::String(name) => Key::from(name.as_str()),
                    other => integer_key(other["key"].as_str().unwrap()).ok_or(NoTree::Foreign)?,
                };
                Ok((key, tree(&entry[1])?))
            });
            Tree::Dict(Dict::from_entries(entries.collect::<Result<_, NoTree>>()?).unwrap())
        }
        _ => return Err(NoTree::Foreign),
    })
}

/// The tensor that Slapo makes of a leaf.
fn wrapped(leaf: &Leaf<Json>) -> Json {
    let scalar = |dtype: &str, value: Value| json!({"dtype": dtype, "shape": [], "data": [value]});
    match leaf {
        Leaf::Tensor(tensor) => tensor.clone(),
        Leaf::None => scalar("i64", json!(0)),
        Leaf::Bool(value) => scalar("bool", json!(value)),
        Leaf::I64(value) => scalar("i64", json!(value)),
        Leaf::F64(value) => {
            #[expect(
                clippy::as_conversions,
                clippy::cast_possible_truncation,
                reason = "Slapo rounds to f32"
            )]
            let rounded = f64::from(*value as f32);
            let text = || json!(rounded.to_string().to_lowercase());
            scalar("f32", serde_json::Number::from_f64(rounded).map_or_else(text, Value::Number))
        }
        other => panic!("Slapo has no tensor for {other:?}"),
    }
}

/// What Slapo makes of a tensor and a type code on receipt.
fn unwrapped(tensor: &Json, code: u64) -> Leaf<Json> {
    match (code, tensor["dtype"].as_str().unwrap()) {
        (0, _) => Leaf::Tensor(tensor.clone()),
        (2, _) => Leaf::None,
        (_, "bool") => Leaf::Bool(tensor["data"][0].as_bool().unwrap()),
        (_, dtype) if dtype.contains('f') => Leaf::F64(float(&tensor["data"][0])),
        _ => Leaf::I64(tensor["data"][0].as_i64().unwrap()),
    }
}

const fn code(kind: LeafKind) -> u64 {
    match kind {
        LeafKind::Tensor => 0,
        LeafKind::Scalar => 1,
        LeafKind::None => 2,
        _ => 99,
    }
}

/// The entries of metadata as Slapo has them.
fn entries(metadata: &Metadata) -> Vec<(String, u64)> {
    metadata
        .leaf_kinds()
        .enumerate()
        .map(|(index, kind)| (metadata.leaf_path(index).unwrap(), code(kind)))
        .collect()
}

/// The structure alone: every scalar is the same.
fn skeleton(tree: &Tree<Json>) -> Metadata {
    flatten(tree.as_ref()).0
}

fn has_wide_integer(tree: &Tree<Json>) -> bool {
    flatten(tree.as_ref())
        .1
        .iter()
        .any(|leaf| matches!(leaf, Leaf::U64(value) if i64::try_from(*value).is_err()))
}

/// Text of a one-element tensor as Python prints `tensor.item()`.
fn item_text(tensor: &Json) -> Option<String> {
    let value = tensor["data"].get(0)?;
    let plain =
        |value: &Value| nested_list_string(&Tree::<()>::F64(float(value)), |()| TensorText::default());
    Some(match tensor["dtype"].as_str()? {
        dtype if dtype.starts_with('c') => {
            let part = |value: &Value| plain(value).trim_end_matches(".0").to_owned();
            let (real, imaginary) = (part(&value[0]), part(&value[1]));
            let sign = if imaginary.starts_with(['-', '+']) { "" } else { "+" };
            if real == "0" { format!("{imaginary}j") } else { format!("({real}{sign}{imaginary}j)") }
        }
        "bool" => (if value.as_bool()? { "True" } else { "False" }).to_owned(),
        dtype if dtype.contains('f') => plain(value),
        _ => value.to_string(),
    })
}

fn describe(tensor: &Json) -> TensorText {
    let shape = tensor["shape"].as_array().unwrap().iter();
    let shape = shape.map(|dim| usize::try_from(dim.as_u64().unwrap()).unwrap()).collect();
    TensorText { shape, item: item_text(tensor) }
}

/// A tree survives flatten, both dialects of text that can hold it, and a frame.
fn assert_lossless(tree: &Tree<Json>, name: &str) {
    let (metadata, leaves) = flatten(tree.clone());
    assert_eq!(unflatten(&metadata, leaves.clone()).as_ref(), Ok(tree), "{name}");
    let text = encode_metadata(&metadata, Dialect::Extended).unwrap();
    assert_eq!(decode_metadata(&text, Dialect::Extended).as_ref(), Ok(&metadata), "{name}: {text}");

    let payloads: Vec<String> = leaves.iter().filter_map(Leaf::tensor).map(Value::to_string).collect();
    let mut payload = payloads.iter();
    let views: Vec<_> = leaves
        .into_iter()
        .map(|leaf| {
            leaf.map(|_| TensorView {
                dtype: brigade_wire::DType::Quantized { scheme: b"json" },
                shape: Shape::from(&[]),
                wants_grad: false,
                data: payload.next().unwrap().as_bytes(),
            })
        })
        .collect();
    let tag = Tag { stage: 1, direction: Direction::Forward, micro_batch: 2 };
    let header = Header { run_id: 3, sender: 4, tag };
    let bytes =
        encode(&header, &metadata, &views, EncodeOptions { payload_checksum: true }).unwrap().to_vec();
    let frame = decode(&bytes, DecodeOptions::default()).unwrap();
    assert_eq!(
        frame.to_tree().map(|view| serde_json::from_slice::<Value>(view.data).unwrap()),
        *tree,
        "{name}"
    );
}

#[test]
fn cases_equal_slapo_or_are_lossless_where_it_is_not() {
    let golden = golden();
    let mut counts = std::collections::BTreeMap::<String, Vec<&str>>::new();
    for case in list(&golden, "cases") {
        let name = case["name"].as_str().unwrap();
        let slapo_flat = case["flatten"]["metadata"].as_array();
        let tree = match tree(&case["input"]) {
            Ok(tree) => tree,
            Err(reason) => {
                assert!(slapo_flat.is_none() || reason == NoTree::Foreign, "{name}: Slapo sends it");
                counts.entry(format!("no tree: {reason:?}")).or_default().push(name);
                continue;
            }
        };
        if flatten(tree.as_ref()).0.depth() > MAX_DEPTH {
            assert!(encode_metadata(&flatten(tree).0, Dialect::Extended).is_err(), "{name}");
            counts.entry("refused: deeper than the limit".into()).or_default().push(name);
            continue;
        }
        assert_lossless(&tree, name);

        let nested = nested_list_string(&tree, describe);
        if let Some(expected) = case["nested_str"]["ok"].as_str() {
            assert_eq!(nested, expected, "{name}");
        }
        if let Some(expected) = case["named"]["ok"].as_array() {
            let named = flat_and_name(&tree, "s0");
            assert_eq!(named.len(), expected.len(), "{name}");
            for ((our_name, our_value), expected) in named.into_iter().zip(expected) {
                assert_eq!(our_name, expected[0].as_str().unwrap(), "{name}");
                assert_eq!(our_value, &self::tree(&expected[1]).unwrap(), "{name}");
            }
        }

        let (metadata, leaves) = flatten(tree.clone());
        let strict = encode_metadata(&metadata, Dialect::Slapo);
        let Some(slapo_flat) = slapo_flat else {
            assert!(
                strict.is_err() || has_wide_integer(&tree),
                "{name}: Slapo raises, strict gives {strict:?}"
            );
            counts.entry("ours is lossless: Slapo raises when sending".into()).or_default().push(name);
            continue;
        };

        // Whatever Slapo sends is read, and gives what Slapo makes of it.
        let encoded = case["encoded"].as_str().unwrap();
        assert_eq!(case["encoded_utf8_len"].as_u64(), u64::try_from(encoded.len()).ok(), "{name}");
        let received =
            decode_metadata(encoded, Dialect::Slapo).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected: Vec<(String, u64)> = slapo_flat
            .iter()
            .map(|entry| (entry[0].as_str().unwrap().into(), entry[1].as_u64().unwrap()))
            .collect();
        assert_eq!(entries(&received), expected, "{name}");
        let slapo_leaves = case["flatten"]["leaves"].as_array().unwrap();
        let unwrapped =
            slapo_leaves.iter().zip(&expected).map(|(leaf, (_, code))| unwrapped(leaf, *code)).collect();
        let received = unflatten(&received, unwrapped).unwrap();
        let slapo = self::tree(&case["unflatten"]).ok();
        if let Some(slapo) = &slapo {
            assert_eq!(&received, slapo, "{name}");
        }

        // Slapo's text is ours exactly where the structure survives it.
        let survives = slapo.as_ref().is_some_and(|slapo| skeleton(slapo) == metadata);
        assert_eq!(strict.is_ok(), survives, "{name}: {strict:?}");
        if survives {
            assert_eq!(strict.as_deref(), Ok(encoded), "{name}");
            assert_eq!(encode_metadata(&metadata, Dialect::Extended).as_deref(), Ok(encoded), "{name}");
            assert_eq!(entries(&metadata), expected, "{name}");
            let wrapped: Vec<Value> = leaves.iter().map(wrapped).collect();
            assert_eq!(&wrapped, slapo_leaves, "{name}");
        }
        let lossless = case["lossless"].as_bool().unwrap();
        let same = slapo.as_ref() == Some(&tree);
        assert!(same || !lossless, "{name}: the golden data says that Slapo loses nothing");
        let kind = match (lossless, same) {
            (true, _) => "equal to Slapo".into(),
            // A named tuple becomes a plain one, which the golden data writes alike.
            (false, true) => "equal to Slapo, but for a Python type".into(),
            (false, false) => format!("ours is lossless, Slapo: {}", case["loss"].as_str().unwrap()),
        };
        counts.entry(kind).or_default().push(name);
    }
    for (kind, names) in counts {
        report(&format!("  {kind}: {} ({})", names.len(), names.join(", ")));
    }
}

/// Whether Slapo's `flatten` can send these entries, and the limits allow it: positions, ascending, none inside
/// a leaf, codes 0 to 2.
fn sendable(entries: &[Vec<String>]) -> bool {
    let position = |token: &str| token.parse::<usize>().ok().filter(|number| number.to_string() == token);
    let mut last: Option<Vec<usize>> = None;
    let mut n_implied = 0_usize;
    for entry in entries {
        let [path, code] = entry.as_slice() else { return false };
        let Some(path) = path.split('.').map(position).collect::<Option<Vec<usize>>>() else { return false };
        let ascends = last.as_ref().is_none_or(|last| *last < path && !path.starts_with(last));
        if !ascends || !["0", "1", "2"].contains(&code.as_str()) || path.len() > MAX_DEPTH {
            return false;
        }
        let last = last.replace(path.clone()).unwrap_or_default();
        let shared = last.iter().zip(&path).take_while(|(a, b)| a == b).count();
        let first = last.get(shared).map_or(0, |position| position + 1);
        n_implied = n_implied.saturating_add(path[shared] - first);
        n_implied = path[shared + 1..].iter().fold(n_implied, |sum, skipped| sum.saturating_add(*skipped));
    }
    n_implied <= MAX_IMPLIED
}

/// Entries as strings, whatever JSON they have.
fn strings(entries: &Value) -> Vec<Vec<String>> {
    let string = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let row = |entry: &Value| entry.as_array().unwrap().iter().map(string).collect();
    entries.as_array().unwrap().iter().map(row).collect()
}

fn text_of(entries: &[Vec<String>]) -> String {
    entries.iter().map(|entry| entry.join(",")).collect::<Vec<_>>().join("|")
}

/// A text cut at its separators. The empty text is what Slapo sends for an empty tuple.
fn split(text: &str) -> Vec<Vec<String>> {
    let row = |entry: &str| entry.split(',').map(str::to_owned).collect();
    if text.is_empty() { Vec::new() } else { text.split('|').map(row).collect() }
}

/// Reads a text, and checks that it is read exactly when Slapo can send it.
fn read(text: &str) -> Option<Metadata> {
    let entries = split(text);
    let decoded = decode_metadata(text, Dialect::Slapo);
    assert_eq!(decoded.is_ok(), sendable(&entries), "{text:?}: {decoded:?}");
    let metadata = decoded.ok()?;
    let ours: Vec<Vec<String>> =
        self::entries(&metadata).into_iter().map(|(path, code)| vec![path, code.to_string()]).collect();
    assert_eq!(ours, entries, "{text:?}");
    Some(metadata)
}

#[test]
fn texts_that_slapo_writes_are_read_and_written_again() {
    let golden = golden();
    for case in list(&golden, "encode") {
        let text = case["ok"].as_str().unwrap();
        assert_eq!(text_of(&strings(&case["metadata"])), text);
        if let Some(metadata) = read(text)
            && !metadata.is_empty()
        {
            assert_eq!(encode_metadata(&metadata, Dialect::Slapo).as_deref(), Ok(text));
        }
    }
    for case in list(&golden, "decode") {
        let text = case["text"].as_str().unwrap();
        if !text.is_empty() {
            assert_eq!(split(text), strings(&case["ok"]));
        }
        read(text);
    }
}

#[test]
fn unflatten_gives_what_slapo_gives() {
    let golden = golden();
    for case in list(&golden, "unflatten_direct") {
        let entries = strings(&case["metadata"]);
        let args: Vec<Tree<Json>> =
            case["args"].as_array().unwrap().iter().map(|arg| tree(arg).unwrap()).collect();
        let Some(metadata) = read(&text_of(&entries)) else { continue };
        let foreign = args.iter().any(|arg| arg.kind() != "tensor");
        let leaves = args.iter().zip(&entries).map(|(arg, entry)| match (arg, entry[1].as_str()) {
            (Tree::Tensor(tensor), code) if code != "1" || tensor["shape"] == json!([]) => {
                unwrapped(tensor, code.parse().unwrap())
            }
            // A tensor of several numbers is no scalar, and a bare Python value no tensor.
            (Tree::Tensor(_), _) => Leaf::Bytes(Vec::new()),
            (other, _) => flatten(other.clone()).1.pop().unwrap_or(Leaf::Bytes(Vec::new())),
        });
        let mut leaves: Vec<_> = leaves.collect();
        leaves.extend(args.iter().skip(entries.len()).map(|_| Leaf::None));
        let fits = leaves.len() == entries.len()
            && leaves.iter().zip(metadata.leaf_kinds()).all(|(leaf, kind)| leaf.kind() == kind);
        let ours = unflatten(&metadata, leaves);
        assert_eq!(ours.is_ok(), fits, "{case}");
        if case["error"].is_string() {
            assert!(ours.is_err() || foreign, "{case}");
        } else if let Ok(ours) = ours {
            assert_eq!(ours, tree(&case["ok"]).unwrap(), "{case}");
        }
    }
}

#[test]
fn leaves_are_wrapped_as_by_slapo_and_containers_are_not() {
    let golden = golden();
    for case in list(&golden, "wrap") {
        let Ok(value) = tree(&case["value"]) else { continue };
        assert_lossless(&value, "wrap");
        let (metadata, leaves) = flatten(value.clone());
        if let (Some(expected), true) = (case["ok"].as_object(), metadata.depth() == 0) {
            let kind = metadata.leaf_kinds().next().unwrap();
            assert_eq!(Some(code(kind)), expected["code"].as_u64(), "{case}");
            assert_eq!(wrapped(&leaves[0]), expected["tensor"], "{case}");
        }
    }
}
