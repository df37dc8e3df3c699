//! What people who train with pipelines ran into, as far as it is about what crosses a boundary.

use brigade_wire::{
    Argument, DType, Dataflow, DecodeOptions, Dict, Edge, EncodeOptions, Leaf, LivenessError, Place, Shape,
    Source, StageSignature, TensorView, Tree, decode, encode, flatten, liveness, unflatten,
};

use crate::common::{Owned, header};

fn f32s(shape: &[usize], wants_grad: bool) -> Owned {
    let n_elements: usize = shape.iter().product();
    let data =
        (0..n_elements).flat_map(|value| f32::from(u8::try_from(value).unwrap()).to_le_bytes()).collect();
    Owned { dtype: Ok(1), shape: shape.to_vec(), wants_grad, data }
}

/// Sends a tree and gives what arrives.
fn sent(tree: &Tree<Owned>) -> Tree<Owned> {
    let bytes = crate::common::frame_of(tree, EncodeOptions { payload_checksum: true });
    let frame = decode(&bytes, DecodeOptions::default()).unwrap();
    frame.to_tree().map(|view| Owned {
        dtype: Ok(DType::fixed().position(|dtype| dtype == view.dtype).unwrap()),
        shape: view.shape.to_vec(),
        wants_grad: view.wants_grad,
        data: view.data.to_vec(),
    })
}

/// The gradient message for what a stage received: a tensor where one is wanted, else None.
fn gradients(received: &Tree<Owned>) -> Tree<Owned> {
    let (metadata, leaves) = flatten(received.as_ref());
    let answer = |leaf: &Leaf<&Owned>| match leaf {
        Leaf::Tensor(tensor) if tensor.wants_grad => Tree::Tensor((*tensor).clone()),
        _ => Tree::None,
    };
    assert_eq!(metadata.len(), leaves.len());
    Tree::Tuple(leaves.iter().map(answer).collect())
}

#[test]
fn b15_only_tensors_that_want_a_gradient_get_one_and_empty_ones_cross() {
    let outputs: Tree<Owned> = Tree::Tuple(
        [f32s(&[2, 2], true), f32s(&[0], false), f32s(&[3], false), f32s(&[1], false)]
            .map(Tree::Tensor)
            .into(),
    );
    let received = sent(&outputs);
    assert_eq!(received, outputs);
    let back = sent(&gradients(&received));
    let kinds: Vec<_> = back.into_items().unwrap().iter().map(Tree::kind).collect();
    assert_eq!(kinds, ["tensor", "None", "None", "None"]);
}

#[test]
fn b16_a_value_that_is_used_now_and_then_is_none_otherwise() {
    for micro_batch in 0..4_usize {
        let y = micro_batch.is_multiple_of(2).then(|| Tree::Tensor(f32s(&[2], true)));
        let message = Tree::from((Tree::Tensor(f32s(&[2, micro_batch], true)), y));
        let received = sent(&message);
        assert_eq!(received, message);
        let [_, y] = received.into_array().unwrap();
        assert_eq!(y.kind(), if micro_batch.is_multiple_of(2) { "tensor" } else { "None" });
    }
}

#[test]
fn b20_a_plain_struct_travels_beside_a_tensor_and_wants_no_gradient() {
    let mut options = Dict::new();
    options.insert("causal", true);
    options.insert("scale", 0.1_f64);
    options.insert(
        "ids",
        Tree::Tensor(Owned { dtype: Ok(5), shape: vec![1], wants_grad: false, data: vec![7; 8] }),
    );
    let input = Tree::from((Tree::Tensor(f32s(&[2], true)), options));
    let received = sent(&input);
    assert_eq!(received, input);
    let back = gradients(&received);
    assert_eq!(back.n_tensors(), 1);
}

#[test]
fn b21_a_dict_of_outputs_keeps_its_keys_and_reaches_the_user() {
    let mut outputs = Dict::new();
    outputs.insert("logits", Tree::Tensor(f32s(&[2, 3], true)));
    outputs.insert("cache", Tree::Tensor(f32s(&[4], false)));
    let received = sent(&outputs.clone().into()).into_dict().unwrap();
    assert_eq!(received, outputs);
    assert!(received.get(&"cache".into()).is_some());
    // The loss uses only the logits; the cache is a result, so it is not dead.
    let flow = Dataflow {
        inputs: vec!["x".into()],
        stages: vec![StageSignature::new(["x"], ["h", "cache"]), StageSignature::new(["h"], ["logits"])],
        results: vec!["logits".into(), "cache".into()],
        ..Dataflow::default()
    };
    let live = liveness(&flow).unwrap();
    assert_eq!(live.boundaries()[1], ["h", "cache"]);
    assert!(live.dead().is_empty());
}

#[test]
fn b22_the_storage_of_a_view_is_refused_and_its_elements_arrive() {
    // A 2 x 3 matrix, its storage in row-major order.
    let storage: Vec<f32> = vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    let at = |row: usize, column: usize| storage[3 * row + column];
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let views: [(&str, Vec<usize>, Vec<f32>); 4] = [
        ("transposed", vec![3, 2], (0..3).flat_map(|c| [at(0, c), at(1, c)]).collect()),
        ("every second column", vec![2, 2], (0..2).flat_map(|r| [at(r, 0), at(r, 2)]).collect()),
        ("expanded", vec![4, 3], (0..4).flat_map(|_| [at(0, 0), at(0, 1), at(0, 2)]).collect()),
        ("slice with an offset", vec![1, 2], vec![at(1, 1), at(1, 2)]),
    ];
    for (name, shape, elements) in views {
        let owned = Owned { dtype: Ok(1), shape: shape.clone(), wants_grad: false, data: bytes(&elements) };
        assert_eq!(sent(&Tree::Tensor(owned.clone())), Tree::Tensor(owned), "{name}");
        if elements.len() != storage.len() {
            let data = bytes(&storage);
            let view =
                TensorView { dtype: DType::F32, shape: Shape::from(&shape), wants_grad: false, data: &data };
            assert!(view.check().is_err(), "{name}");
        }
    }
}

fn four_stages(broadcast: bool) -> Dataflow {
    let mask = vec!["mask".to_owned()];
    let (inputs, broadcast) = if broadcast { (vec![], mask) } else { (mask, vec![]) };
    Dataflow {
        inputs: [vec!["x".to_owned()], inputs].concat(),
        broadcast,
        stages: (0..4)
            .map(|stage| {
                let input = if stage == 0 { "x".to_owned() } else { format!("h{}", stage - 1) };
                StageSignature::new([input, "mask".to_owned()], [format!("h{stage}")])
            })
            .collect(),
        results: vec!["h3".into()],
    }
}

#[test]
fn b25_every_consumer_of_a_value_is_known_so_that_their_gradients_can_be_summed() {
    let flow = Dataflow {
        inputs: vec!["x".into()],
        stages: vec![
            StageSignature::new(["x"], ["t"]),
            StageSignature::new(["t"], ["a"]),
            StageSignature::new(["a", "t"], ["b"]),
            StageSignature::new(["b", "t"], ["y"]),
        ],
        results: vec!["y".into()],
        ..Dataflow::default()
    };
    let live = liveness(&flow).unwrap();
    assert_eq!(live.consumers("t"), [1, 2, 3].map(Place::Stage));
    let receivers: Vec<Place> =
        live.edges().iter().filter(|edge| edge.values.contains(&"t".into())).map(|edge| edge.to).collect();
    assert_eq!(receivers, [1, 2, 3].map(Place::Stage));
    // Carried: it stands once in every boundary up to its last use.
    for boundary in &live.boundaries()[1..4] {
        assert_eq!(boundary.iter().filter(|value| *value == "t").count(), 1);
    }
    assert!(!live.boundaries()[4].contains(&"t".into()));
}

#[test]
fn b26_a_skip_over_stages_goes_straight_or_is_carried() {
    let flow = Dataflow {
        inputs: vec!["x".into()],
        stages: vec![
            StageSignature::new(["x"], ["f1"]),
            StageSignature::new(["f1"], ["f2"]),
            StageSignature::new(["f2", "x"], ["y"]),
        ],
        results: vec!["y".into()],
        ..Dataflow::default()
    };
    let live = liveness(&flow).unwrap();
    assert_eq!(live.boundaries()[1], ["f1", "x"]);
    assert_eq!(live.sends()[1], [Source::Output(0), Source::Incoming(1)]);
    let straight = Edge { from: Place::Inputs, to: Place::Stage(2), values: vec!["x".into()] };
    assert!(live.edges().contains(&straight));
}

#[test]
fn b27_a_mask_for_every_stage_is_declared_and_delivered_or_an_error() {
    let carried = liveness(&four_stages(false)).unwrap();
    for stage in 0..4 {
        assert!(carried.boundaries()[stage].contains(&"mask".into()));
    }
    let declared = liveness(&four_stages(true)).unwrap();
    for stage in 0..4 {
        assert!(!declared.boundaries()[stage].contains(&"mask".into()));
        assert_eq!(declared.arguments()[stage], [Argument::Boundary(0), Argument::Broadcast(0)]);
    }
    let mut missing = four_stages(true);
    missing.broadcast.clear();
    let error = liveness(&missing).unwrap_err();
    assert_eq!(error, LivenessError::Undefined { value: "mask".into(), user: Place::Stage(0) });
}

#[test]
fn r5_sixty_tensors_and_a_dimension_of_two_to_the_31() {
    let tensors: Vec<Tree<Owned>> =
        (0..60).map(|n| Tree::Tensor(f32s(&[n % 5, 1, 2, 1], n % 2 == 0))).collect();
    let tree = Tree::Tuple(tensors);
    assert_eq!(sent(&tree), tree);

    // A tensor without elements may have any other dimension; so may a quantised one.
    let large = [1_usize << 31, usize::MAX, 0];
    let empty = TensorView { dtype: DType::F64, shape: Shape::from(&large), wants_grad: true, data: &[] };
    let packed = TensorView {
        dtype: DType::Quantized { scheme: b"zeros" },
        shape: Shape::from(&large[..2]),
        wants_grad: false,
        data: b"z",
    };
    let tree = Tree::from((Tree::Tensor(empty), Tree::Tensor(packed)));
    let (metadata, leaves) = flatten(tree.clone());
    let bytes = encode(&header(0), &metadata, &leaves, EncodeOptions::default()).unwrap().to_vec();
    let frame = decode(&bytes, DecodeOptions::default()).unwrap();
    assert_eq!(frame.to_tree(), tree);
    assert_eq!(unflatten(&frame.metadata(), frame.leaves().collect()), Ok(tree));

    // Elements that are not there are refused, and so is a product beyond 64 bits.
    let view = TensorView { shape: Shape::from(&large[..1]), ..empty };
    let error = view.check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "an f64 tensor of shape [2147483648] has 17179869184 bytes, got 0: send contiguous elements"
    );
    let view = TensorView { shape: Shape::from(&large[..2]), ..empty };
    assert!(view.check().unwrap_err().to_string().contains("overflow"));
}

const CHILD: &str = "BRIGADE_WIRE_R10_CHILD";

#[test]
#[expect(clippy::print_stdout, reason = "a child process tells its parent what it has computed")]
fn r10_every_process_computes_the_same_order() {
    let flow = Dataflow {
        inputs: ["gamma", "alpha", "beta"].map(str::to_owned).into(),
        stages: vec![
            StageSignature::new(["beta"], ["z", "y"]),
            StageSignature::new(["y"], ["x"]),
            StageSignature::new(["gamma", "x", "alpha", "z"], ["loss"]),
        ],
        results: vec!["loss".into()],
        ..Dataflow::default()
    };
    let computed = format!("order={:?}", liveness(&flow).unwrap());
    if std::env::var_os(CHILD).is_some() {
        println!("{computed}");
        return;
    }
    for _ in 0..3 {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["cases::r10_every_process_computes_the_same_order", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let output = String::from_utf8(child.stdout).unwrap();
        assert!(output.contains(&computed), "{output}");
    }
}
