//! Fuzzing of what reads foreign bytes, by cargo-fuzz on a nightly toolchain.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::process::{Run, say};
use crate::workspace::Workspace;

/// A fuzz target and the folder of the crate that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FuzzTarget {
    /// Name of the target.
    pub name: String,
    /// Folder of the fuzz crate, relative to the root.
    pub folder: String,
}

/// Finds the fuzz targets below `crates/*/fuzz`.
///
/// # Errors
/// When Cargo cannot read the manifest of a fuzz crate.
pub fn targets(workspace: &Workspace) -> Result<Vec<FuzzTarget>> {
    let mut found = Vec::new();
    for package in &workspace.packages {
        let folder = format!("{}/fuzz", workspace.folder(package));
        let manifest = workspace.root.join(&folder).join("Cargo.toml");
        if manifest.is_file() {
            let fuzz = Workspace::load_manifest(&manifest)?;
            let bins = fuzz.packages.iter().flat_map(|p| p.targets_of("bin"));
            found.extend(bins.map(|bin| FuzzTarget { name: bin.name.clone(), folder: folder.clone() }));
        }
    }
    Ok(found)
}

/// Fuzzes one target for some seconds; without a target, lists them.
///
/// # Errors
/// When the target is unknown, or the nightly toolchain or cargo-fuzz is missing.
pub fn run(workspace: &Workspace, target: Option<&str>, seconds: u32) -> Result<bool> {
    let targets = targets(workspace)?;
    if targets.is_empty() {
        bail!("no crate has fuzz targets, in a folder `fuzz` below it");
    }
    let Some(name) = target else {
        say("targets:");
        targets.iter().for_each(|target| say(format_args!("  {:<24} {}", target.name, target.folder)));
        say("fuzz one with: cargo xtask fuzz TARGET --seconds N");
        return Ok(true);
    };
    let Some(target) = targets.iter().find(|target| target.name == name) else {
        let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        bail!("no fuzz target {name}; there are: {}", names.join(", "));
    };
    if !Run::cargo(["+nightly", "--version"]).works() {
        bail!(
            "no nightly toolchain, which cargo-fuzz needs; install it with: rustup toolchain install nightly"
        );
    }
    if !Run::cargo(["+nightly", "fuzz", "--version"]).works() {
        bail!("cargo-fuzz is not installed; install it with: cargo install --locked cargo-fuzz");
    }
    let folder = PathBuf::from(&target.folder);
    let owner = folder.parent().unwrap_or(&folder);
    let limit = format!("-max_total_time={seconds}");
    Run::cargo(["+nightly", "fuzz", "run", name, "--", &limit]).dir(owner).status()
}
