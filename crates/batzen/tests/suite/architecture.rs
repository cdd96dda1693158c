//! The code map of ARCHITECTURE.md: compares the allowed dependencies of each crate with the manifests, and
//! checks the document's length.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The header of the table.
const HEADER: &str = "| crate | may use |";

/// The most words in the document. Mechanisms are explained in `docs/internals`.
const WORDS_MAX: usize = 2_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn document() -> String {
    let path = root().join("ARCHITECTURE.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the table, from the top: a crate, and the crates that it may use.
fn rows() -> Vec<(String, String)> {
    let document = document();
    let tables = document.lines().filter(|line| *line == HEADER).count();
    assert_eq!(tables, 1, "ARCHITECTURE.md needs exactly one table that begins with `{HEADER}`");
    let mut rows = Vec::new();
    for line in document.lines().skip_while(|line| *line != HEADER).skip(2) {
        if !line.starts_with('|') {
            break;
        }
        let cells = line.trim_matches('|').split_once('|');
        let (name, may_use) = cells.unwrap_or_else(|| panic!("not a row with two cells: {line}"));
        rows.push((name.trim().to_owned(), may_use.trim().to_owned()));
    }
    rows
}

/// The directory that contains a package's manifest, below `crates/` or the root: `store/engine`, `lab/simulation`.
fn directory(package: &Value) -> String {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
    let below = manifest.strip_prefix(root()).unwrap();
    below.strip_prefix("crates").unwrap_or(below).to_str().unwrap().to_owned()
}

/// The name of a crate in the table's second column: the last part of its directory.
fn short(directory: &str) -> String {
    directory.rsplit('/').next().unwrap_or(directory).to_owned()
}

/// The packages of the workspace.
fn packages() -> Vec<Value> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The directories of the workspace's crates.
pub(crate) fn crate_directories() -> Vec<PathBuf> {
    let manifest = |package: &Value| PathBuf::from(package["manifest_path"].as_str().unwrap());
    packages().iter().map(|package| manifest(package).parent().unwrap().to_owned()).collect()
}

/// The crates of the workspace by directory, each with the normal dependencies in its manifest by name.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let packages = packages();
    let name_of = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let mut directories = BTreeMap::new();
    for package in &packages {
        directories.insert(name_of(package), directory(package));
    }
    let mut crates = BTreeMap::new();
    for package in &packages {
        let mut uses = BTreeSet::new();
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = name_of(dependency);
            // Dependencies of tests and build scripts have a kind.
            if dependency["kind"].is_null() && name.starts_with("batzen-") {
                let found = directories.get(&name);
                let found = found.unwrap_or_else(|| panic!("{name} is not in the workspace"));
                uses.insert(short(found));
            }
        }
        crates.insert(directory(package), uses);
    }
    crates
}

#[test]
fn each_crate_has_one_row() {
    let crates = dependencies();
    let listed: Vec<String> = rows().into_iter().map(|(name, _)| name).collect();
    for name in crates.keys() {
        let count = listed.iter().filter(|other| *other == name).count();
        assert_eq!(count, 1, "ARCHITECTURE.md: rows of {name} in the code map's table");
    }
    for name in &listed {
        assert!(crates.contains_key(name), "ARCHITECTURE.md: {name} is not in the workspace");
    }
}

#[test]
fn each_row_lists_the_normal_dependencies() {
    let crates = dependencies();
    for (name, may_use) in rows() {
        let uses = crates.get(&name).unwrap_or_else(|| panic!("{name} is not in the workspace"));
        let uses: Vec<&str> = uses.iter().map(String::as_str).collect();
        let expected = if uses.is_empty() { "none".to_owned() } else { uses.join(", ") };
        assert_eq!(may_use, expected, "ARCHITECTURE.md: by its manifest `| {name} | {expected} |`");
    }
}

#[test]
fn crates_use_only_crates_in_rows_above() {
    let crates = dependencies();
    let mut above = BTreeSet::new();
    for (name, _) in rows() {
        let uses = crates.get(&name).unwrap_or_else(|| panic!("{name} is not in the workspace"));
        for used in uses {
            assert!(above.contains(used), "ARCHITECTURE.md: {name} uses {used}, which has no row above");
        }
        assert!(above.insert(short(&name)), "two crates are called {}", short(&name));
    }
}

#[test]
fn no_product_crate_uses_the_laboratory() {
    let crates = dependencies();
    let is_product = |name: &str| !name.starts_with("lab/") && name != "testkit";
    let others: BTreeSet<String> =
        crates.keys().filter(|name| !is_product(name)).map(|name| short(name)).collect();
    assert!(others.len() > 1, "{others:?}");
    for (name, uses) in crates.iter().filter(|(name, _)| is_product(name)) {
        let wrong: Vec<&String> = uses.intersection(&others).collect();
        assert!(wrong.is_empty(), "{name} uses {wrong:?}");
    }
}

#[test]
fn the_document_is_short() {
    let words = document().split_whitespace().count();
    assert!(words <= WORDS_MAX, "ARCHITECTURE.md has {words} words of {WORDS_MAX}: see docs/internals");
}

/// Whether a file has an example in its documentation that `cargo test` would run.
fn has_example(file: &Path) -> bool {
    let text = std::fs::read_to_string(file).unwrap();
    let mut is_open = false;
    text.lines().map(str::trim_start).any(|line| {
        let Some(fence) = line.strip_prefix("/// ```").or_else(|| line.strip_prefix("//! ```")) else {
            return false;
        };
        is_open = !is_open;
        is_open && (fence.is_empty() || fence.starts_with("rust") || fence.starts_with("should_panic"))
    })
}

/// To look for examples costs as much as to check a crate, so only those that have some are searched.
#[test]
fn examples_in_documentation_are_run() {
    for directory in crate_directories() {
        let manifest = std::fs::read_to_string(directory.join("Cargo.toml")).unwrap();
        let is_run = !manifest.contains("doctest = false");
        let mut files = vec![directory.join("src")];
        let mut has_some = false;
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                has_some |= has_example(&path);
            }
        }
        let has_library = directory.join("src/lib.rs").exists();
        assert_eq!(is_run && has_library, has_some, "`doctest` in the manifest of {}", directory.display());
    }
}
