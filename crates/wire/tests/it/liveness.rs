//! Routing of named values: orders, pass-through, dead values and errors, and a replay of every small model.

use brigade_wire::{Argument, Dataflow, Edge, LivenessError, Place, Source, StageSignature, liveness};
use proptest::{collection::vec, prelude::*};

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn dataflow(inputs: &[&str], stages: &[(&[&str], &[&str])], results: &[&str]) -> Dataflow {
    Dataflow {
        inputs: names(inputs),
        broadcast: Vec::new(),
        stages: stages
            .iter()
            .map(|(i, o)| StageSignature::new(i.iter().copied(), o.iter().copied()))
            .collect(),
        results: names(results),
    }
}

#[test]
fn the_order_is_slapos() {
    // Worked out by hand with `analyze_pipeline_module`: own arguments first, then the live set, which keeps the
    // order of the later stages.
    let flow = dataflow(
        &["x", "mask", "bias"],
        &[
            (&["x"], &["s0"]),
            (&["s0", "x"], &["s1"]),
            (&["s1", "mask"], &["s2"]),
            (&["s2", "bias", "s0"], &["s3"]),
        ],
        &["s3"],
    );
    let live = liveness(&flow).unwrap();
    assert_eq!(live.boundaries()[3], ["s2", "bias", "s0"]);
    assert_eq!(live.boundaries()[2], ["s1", "mask", "bias", "s0"]);
    assert_eq!(live.boundaries()[1], ["s0", "x", "bias", "mask"]);
    assert_eq!(live.boundaries()[0], ["x", "mask", "bias"]);
    assert_eq!(live.boundaries()[4], ["s3"]);
    assert_eq!(live.arguments()[3], [0, 1, 2].map(Argument::Boundary));
    assert_eq!(
        live.sends()[1],
        [Source::Output(0), Source::Incoming(3), Source::Incoming(2), Source::Incoming(0)]
    );
}

#[test]
fn stage_0_takes_the_inputs_in_their_order() {
    // The tracer has put the arguments of stage 0 in another order; b and e are None and unused.
    let flow = dataflow(&["a", "b", "c", "d", "e"], &[(&["a", "d", "c"], &["y"])], &["y"]);
    let live = liveness(&flow).unwrap();
    assert_eq!(live.boundaries()[0], ["a", "c", "d"]);
    assert_eq!(live.arguments()[0], [0, 2, 1].map(Argument::Boundary));
    assert_eq!(live.dead(), [(Place::Inputs, "b".to_owned()), (Place::Inputs, "e".to_owned())]);
}

#[test]
fn dead_values_are_dropped_and_listed() {
    let flow = dataflow(&["x"], &[(&["x"], &["y", "aux"]), (&["y"], &["z", "aux2"])], &["z"]);
    let live = liveness(&flow).unwrap();
    assert_eq!(live.boundaries()[1], ["y"]);
    assert_eq!(live.boundaries()[2], ["z"]);
    assert_eq!(live.dead(), [(Place::Stage(0), "aux".to_owned()), (Place::Stage(1), "aux2".to_owned())]);
    assert!(live.consumers("aux").is_empty());
}

#[test]
fn an_argument_may_stand_twice_and_a_result_too() {
    let flow = dataflow(&["x"], &[(&["x", "x"], &["y"])], &["y", "x", "y"]);
    let live = liveness(&flow).unwrap();
    assert_eq!(live.boundaries(), [names(&["x"]), names(&["y", "x"])]);
    assert_eq!(live.arguments()[0], [0, 0].map(Argument::Boundary));
    assert_eq!(live.arguments()[1], [0, 1, 0].map(Argument::Boundary));
    assert_eq!(live.consumers("x"), [Place::Stage(0), Place::Results]);
}

#[test]
fn names_that_begin_alike_are_different_values() {
    // Slapo drops `s1` of the live set together with everything that starts with it, `s10` too.
    let flow =
        dataflow(&["x", "s10"], &[(&["x"], &["s1"]), (&["s1"], &["y"]), (&["y", "s10"], &["z"])], &["z"]);
    assert_eq!(liveness(&flow).unwrap().boundaries()[1], ["s1", "s10"]);
}

#[test]
fn errors_name_the_value_and_the_stage() {
    let error = |flow: Dataflow| liveness(&flow).unwrap_err();
    assert_eq!(error(Dataflow::default()), LivenessError::NoStages);
    let undefined = error(dataflow(&["x"], &[(&["x"], &["y"]), (&["nope"], &["z"])], &["z"]));
    assert_eq!(undefined, LivenessError::Undefined { value: "nope".into(), user: Place::Stage(1) });
    assert_eq!(
        undefined.to_string(),
        "stage 1 uses `nope`, which neither an input of the model nor an earlier stage makes"
    );
    let later = error(dataflow(&["x"], &[(&["x", "z"], &["y"]), (&["y"], &["z"])], &["z"]));
    assert_eq!(later, LivenessError::TooEarly { value: "z".into(), user: Place::Stage(0), maker: 1 });
    let itself = error(dataflow(&["x"], &[(&["y"], &["y"])], &["y"]));
    assert_eq!(itself, LivenessError::TooEarly { value: "y".into(), user: Place::Stage(0), maker: 0 });
    let twice = error(dataflow(&["x"], &[(&["x"], &["y"]), (&["y"], &["x"])], &["x"]));
    assert_eq!(
        twice,
        LivenessError::MadeTwice { value: "x".into(), first: Place::Inputs, second: Place::Stage(1) }
    );
    let result = error(dataflow(&["x"], &[(&["x"], &["y"])], &["loss"]));
    assert_eq!(result, LivenessError::Undefined { value: "loss".into(), user: Place::Results });
}

/// Runs a model over its names: every stage finds its arguments where `liveness` says.
fn replay(flow: &Dataflow) -> Result<(), LivenessError> {
    let live = liveness(flow)?;
    let mut arriving = live.boundaries()[0].clone();
    assert!(arriving.iter().all(|value| flow.inputs.contains(value)));
    let wanted: Vec<_> = flow.stages.iter().map(|stage| &stage.inputs).chain([&flow.results]).collect();
    for (place, inputs) in wanted.iter().enumerate() {
        assert_eq!(arriving, live.boundaries()[place]);
        let found: Vec<&String> = live.arguments()[place]
            .iter()
            .map(|argument| match *argument {
                Argument::Boundary(position) => &arriving[position],
                Argument::Broadcast(position) => &flow.broadcast[position],
            })
            .collect();
        assert_eq!(found, inputs.iter().collect::<Vec<_>>());
        // Nothing arrives that is not used here or later, and nothing twice.
        for (position, value) in arriving.iter().enumerate() {
            assert!(wanted[place..].iter().any(|inputs| inputs.contains(value)), "{value} is dead");
            assert!(!arriving[..position].contains(value));
        }
        if let Some(stage) = flow.stages.get(place) {
            let send = |source: &Source| match *source {
                Source::Incoming(position) => arriving[position].clone(),
                Source::Output(position) => stage.outputs[position].clone(),
            };
            arriving = live.sends()[place].iter().map(send).collect();
        }
    }
    // Straight from maker to user: the same uses, each once.
    let mut uses: Vec<(Place, &String)> = Vec::new();
    for Edge { to, values, .. } in live.edges() {
        uses.extend(values.iter().map(|value| (*to, value)));
    }
    for (value, place) in uses.iter().map(|(place, value)| (*value, place)) {
        assert!(live.consumers(value).contains(place));
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_stage_finds_its_arguments(
        n_inputs in 1..4_usize,
        n_broadcast in 0..2_usize,
        picks in vec((vec(any::<prop::sample::Index>(), 0..4), 0..3_usize), 1..6),
        results in vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let inputs: Vec<String> = (0..n_inputs).map(|index| format!("in{index}")).collect();
        let broadcast: Vec<String> = (0..n_broadcast).map(|index| format!("all{index}")).collect();
        let mut made = [inputs.clone(), broadcast.clone()].concat();
        let mut stages = Vec::new();
        for (stage, (arguments, n_outputs)) in picks.iter().enumerate() {
            let arguments: Vec<String> = arguments.iter().map(|pick| pick.get(&made).clone()).collect();
            let outputs: Vec<String> = (0..*n_outputs).map(|output| format!("s{stage}.{output}")).collect();
            made.extend(outputs.clone());
            stages.push(StageSignature::new(arguments, outputs));
        }
        let results = results.iter().map(|pick| pick.get(&made).clone()).collect();
        replay(&Dataflow { inputs, broadcast, stages, results }).unwrap();
    }
}
