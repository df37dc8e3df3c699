//! Plans what each boundary carries for `y = f2(f1(f0(x)) + x, mask)`, and runs the plan without names.
//!
//! `cargo run -p brigade-wire --example skip_connection`

use brigade_wire::{Argument, Dataflow, LivenessError, Source, StageSignature, liveness};

fn main() -> Result<(), LivenessError> {
    let dataflow = Dataflow {
        inputs: vec!["x".into()],
        broadcast: vec!["mask".into()],
        stages: vec![
            StageSignature::new(["x"], ["a"]),
            StageSignature::new(["a"], ["b"]),
            StageSignature::new(["b", "x", "mask"], ["y"]),
        ],
        results: vec!["y".into()],
    };
    let live = liveness(&dataflow)?;
    assert_eq!(live.boundaries()[2], ["b", "x"]);

    let stages: [fn(&[i64]) -> i64; 3] = [|x| x[0] * 10, |a| a[0] + 1, |v| (v[0] + v[1]) * v[2]];
    let mask = 2;
    let mut boundary = vec![4];
    for (stage, run) in stages.iter().enumerate() {
        let argument = |argument: &Argument| match *argument {
            Argument::Boundary(position) => boundary[position],
            Argument::Broadcast(_) => mask,
        };
        let output = run(&live.arguments()[stage].iter().map(argument).collect::<Vec<_>>());
        let send = |source: &Source| match *source {
            Source::Incoming(position) => boundary[position],
            Source::Output(_) => output,
        };
        boundary = live.sends()[stage].iter().map(send).collect();
    }
    assert_eq!(boundary, [(41 + 4) * 2]);
    Ok(())
}
