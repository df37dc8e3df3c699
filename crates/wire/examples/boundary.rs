//! Sends a stage's output through bytes, as a transport between two processes would.
//!
//! `cargo run -p brigade-wire --example boundary`

use brigade_wire::{
    DType, DecodeOptions, Dict, Direction, EncodeOptions, Header, Leaf, Shape, Tag, TensorView, Tree, decode,
    encode, flatten, frame,
};

/// A tensor of this example's framework.
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
    is_tracked: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The sender: {"hidden": h, "mask": None, "scale": 0.1}.
    let hidden = Tensor { shape: vec![2, 3], values: vec![0.5; 6], is_tracked: true };
    let mut output = Dict::new();
    output.insert("hidden", Tree::Tensor(hidden));
    output.insert("mask", Tree::None);
    output.insert("scale", 0.1);
    let (metadata, leaves) = flatten(Tree::Dict(output));

    let payloads: Vec<Vec<u8>> = leaves
        .iter()
        .filter_map(Leaf::tensor)
        .map(|tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let mut payload = payloads.iter();
    let views: Vec<_> = leaves
        .iter()
        .map(|leaf| {
            leaf.as_ref().map(|tensor| TensorView {
                dtype: DType::F32,
                shape: Shape::from(&tensor.shape),
                wants_grad: tensor.is_tracked,
                data: payload.next().map_or(&[], Vec::as_slice),
            })
        })
        .collect();
    let tag = Tag { stage: 0, direction: Direction::Forward, micro_batch: 3 };
    let frame = encode(&Header { run_id: 1, sender: 0, tag }, &metadata, &views, EncodeOptions::default())?;

    // The wire: the head of a frame tells how much to read.
    let wire: Vec<u8> = frame.slices().flatten().copied().collect();
    let n_bytes = usize::try_from(frame::frame_bytes(&wire[..frame::FRAME_HEAD_BYTES])?)?;

    // The receiver: the payload is a slice of what has arrived.
    let frame = decode(&wire[..n_bytes], DecodeOptions::default())?;
    assert_eq!(frame.header().tag, tag);
    let mut input = frame.to_tree().into_dict()?;
    assert_eq!(input.remove(&"scale".into()), Some(Tree::F64(0.1)));
    assert_eq!(input.remove(&"mask".into()), Some(Tree::None));
    let hidden = input.remove(&"hidden".into()).ok_or("no hidden state")?.into_tensor()?;
    assert_eq!((hidden.shape.to_vec(), hidden.wants_grad), (vec![2, 3], true));
    assert!(hidden.data.chunks(4).all(|bytes| bytes == 0.5_f32.to_le_bytes()));
    Ok(())
}
