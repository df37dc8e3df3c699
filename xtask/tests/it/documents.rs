//! The table of dependencies, and paths of one machine.

use xtask::tidy::{Tree, architecture, machine_paths};

use crate::fixture::{depend, places, workspace, workspace_with};

const TABLE: &str = "# Architecture\n\n## Dependencies\n\n| dependency | what it is for |\n| --- | --- |\n\
    | `serde` | values as data |\n| `bincode` | the header |\n| `burn` | tensors |\n";

fn places_in(text: &str) -> Vec<(String, usize)> {
    let found = architecture(&workspace(), &Tree::of(&[("ARCHITECTURE.md", text)]));
    found.into_iter().map(|v| (v.file, v.line)).collect()
}

fn document(line: usize) -> (String, usize) {
    ("ARCHITECTURE.md".to_owned(), line)
}

#[test]
fn a_full_table_is_sound() {
    assert_eq!(places_in(TABLE), []);
    let shared = TABLE.replace("| `serde` | values as data |\n| `bincode` |", "| `serde`, `bincode` |");
    assert_eq!(places_in(&shared), []);
}

#[test]
fn the_document_and_its_table_must_be_there() {
    let found = architecture(&workspace(), &Tree::default());
    assert_eq!(places(&found), [("ARCHITECTURE.md", 1, "dependency-table")]);
    assert_eq!(places_in("# Architecture\n\nNothing more.\n"), [document(1)]);
    assert_eq!(places_in(&TABLE.replace("## Dependencies", "## Crates")), [document(1)]);
}

#[test]
fn a_dependency_without_a_row_is_seen_at_its_declaration() {
    let workspace = workspace_with(|metadata| {
        depend(metadata, "brigade-wire", "crc32c", None);
        depend(metadata, "brigade-wire", "cc", Some("build"));
        depend(metadata, "brigade-wire", "proptest", Some("dev"));
    });
    let manifest = "[dependencies]\ncrc32c.workspace = true\n\n[build-dependencies]\ncc = \"1\"\n";
    let tree = Tree::of(&[("ARCHITECTURE.md", TABLE), ("crates/wire/Cargo.toml", manifest)]);
    assert_eq!(
        places(&architecture(&workspace, &tree)),
        [
            ("crates/wire/Cargo.toml", 2, "dependency-table"),
            ("crates/wire/Cargo.toml", 5, "dependency-table")
        ]
    );
}

#[test]
fn a_row_in_another_section_does_not_count() {
    let text = format!("{TABLE}\n## Tools\n\n| `serde` | elsewhere |\n");
    assert_eq!(places_in(&text), []);
    let moved = TABLE.replace("| `burn` | tensors |\n", "\n## Tools\n\n| `burn` | tensors |\n");
    assert_eq!(places_in(&moved), [("crates/engine/Cargo.toml".to_owned(), 1)]);
}

#[test]
fn a_row_that_has_outlived_its_dependency_is_seen() {
    assert_eq!(places_in(&format!("{TABLE}| `anyhow` | errors |\n")), [document(10)]);
}

#[test]
fn a_row_must_say_why() {
    assert_eq!(places_in(&TABLE.replace("| tensors |", "| |")), [document(9)]);
    assert_eq!(places_in(&TABLE.replace("| `burn` | tensors |", "| `burn` |")), [document(9)]);
}

#[test]
fn paths_of_one_machine_are_seen() {
    for root in ["home", "root", "Users", "work"] {
        for text in [format!("see /{root}/me/x"), format!("//! `/{root}/x`"), format!("(file:///{root}/x)")] {
            assert_eq!(
                places(&machine_paths("README.md", &format!("\n{text}\n"))),
                [("README.md", 2, "machine-path")]
            );
        }
    }
}

#[test]
fn relative_paths_and_addresses_are_free() {
    for root in ["home", "root", "Users", "work"] {
        for before in ["crates", "~", "$HOME", "..", "https://docs.rs", "{dir}", "my-", "<dir>"] {
            let text = format!("{before}/{root}/x");
            assert_eq!(machine_paths("README.md", &text), [], "{text}");
        }
    }
    assert_eq!(machine_paths("README.md", "/tmp/x and /usr/lib"), []);
}
