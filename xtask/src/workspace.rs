//! What `cargo metadata` says of the workspace: packages, dependencies, targets.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::process::Run;

/// The workspace as `cargo metadata --no-deps` describes it.
#[derive(Debug, Clone, Deserialize)]
pub struct Workspace {
    /// Absolute path of the folder that holds the root manifest.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    /// The members, in Cargo's order.
    pub packages: Vec<Package>,
}

/// One member of the workspace.
#[derive(Debug, Clone, Deserialize)]
pub struct Package {
    /// Name in the manifest.
    pub name: String,
    /// Absolute path of the manifest.
    pub manifest_path: PathBuf,
    /// Dependencies of all kinds and platforms.
    pub dependencies: Vec<Dependency>,
    /// Libraries, binaries, tests, benches, examples, build script.
    pub targets: Vec<Target>,
}

/// One dependency of a member.
#[derive(Debug, Clone, Deserialize)]
pub struct Dependency {
    /// Name of the package depended on, whatever it is renamed to.
    pub name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
    /// Features asked for by name, those of `[workspace.dependencies]` among them.
    #[serde(default)]
    pub features: BTreeSet<String>,
    /// Whether the default features are asked for too.
    #[serde(default)]
    pub uses_default_features: bool,
}

/// One build target of a member.
#[derive(Debug, Clone, Deserialize)]
pub struct Target {
    /// Name of the target.
    pub name: String,
    /// `lib`, `bin`, `test`, `bench`, `example`, `custom-build`, ...
    pub kind: Vec<String>,
    /// Absolute path of its root file.
    pub src_path: PathBuf,
}

impl Workspace {
    /// Asks Cargo about the workspace around the current folder.
    ///
    /// # Errors
    /// When Cargo fails, or answers something else than metadata.
    pub fn load() -> Result<Self> {
        let json = Run::cargo(["metadata", "--no-deps", "--format-version", "1"]).output()?;
        Self::from_json(&json)
    }

    /// Asks Cargo about the packages of a manifest outside the workspace (a fuzz crate).
    ///
    /// # Errors
    /// When Cargo fails, or answers something else than metadata.
    pub fn load_manifest(manifest: &Path) -> Result<Self> {
        let manifest = manifest.display().to_string();
        let json =
            Run::cargo(["metadata", "--no-deps", "--format-version", "1", "--manifest-path", &manifest])
                .output()?;
        Self::from_json(&json)
    }

    /// Reads the JSON that `cargo metadata --no-deps` prints.
    ///
    /// # Errors
    /// When the text is not such JSON, or a member lies outside the workspace's folder.
    pub fn from_json(json: &str) -> Result<Self> {
        let workspace: Self = serde_json::from_str(json).context("reading the output of cargo metadata")?;
        for package in &workspace.packages {
            if !package.manifest_path.starts_with(&workspace.root) {
                bail!(
                    "package {} lies outside the workspace: {}",
                    package.name,
                    package.manifest_path.display()
                );
            }
        }
        Ok(workspace)
    }

    /// A path below the root, with forward slashes; a path elsewhere as it is.
    #[must_use]
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string().replace('\\', "/")
    }

    /// The folder of a package, relative to the root.
    #[must_use]
    pub fn folder(&self, package: &Package) -> String {
        self.relative(package.manifest_path.parent().unwrap_or(&self.root))
    }

    /// The members, or the one that `only` names with or without its prefix `brigade-`.
    ///
    /// # Errors
    /// When there is no member of that name.
    pub fn chosen(&self, only: Option<&str>) -> Result<Vec<&Package>> {
        let Some(only) = only else { return Ok(self.packages.iter().collect()) };
        let long = format!("brigade-{only}");
        let Some(package) = self.packages.iter().find(|p| p.name == only || p.name == long) else {
            let names: Vec<_> = self.packages.iter().map(|p| p.name.as_str()).collect();
            bail!("no crate {only}; there are: {}", names.join(", "));
        };
        Ok(vec![package])
    }

    /// The package whose folder holds a path given relative to the root.
    #[must_use]
    pub fn owner(&self, path: &str) -> Option<&Package> {
        self.packages
            .iter()
            .find(|p| path.strip_prefix(&self.folder(p)).is_some_and(|rest| rest.starts_with('/')))
    }
}

impl Package {
    /// Targets of one kind.
    pub fn targets_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Target> {
        self.targets.iter().filter(move |t| t.kind.iter().any(|k| k == kind))
    }
}

impl Dependency {
    /// Whether the package itself needs it, not only its tests, benches and examples.
    #[must_use]
    pub fn ships(&self) -> bool {
        self.kind.as_deref() != Some("dev")
    }
}
