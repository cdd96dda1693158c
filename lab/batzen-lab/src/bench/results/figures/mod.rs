//! `batzen-lab bench figures`: no figure in a document is typed by hand.
//!
//! | mark in a document | meaning |
//! |---|---|
//! | `5,363<!-- = cycle.ops_per_s -->` | the figure before the comment is computed from a kept result ([`formula`]) |
//! | `<!-- bench: NAME -->` to `<!-- bench: end -->` | a table of [`table`], or `age`: versions, commits and days of all results that the document shows |
//!
//! A document with figures must have the mark `age`. Other throughputs and costs must be in the list of [`others`]; [`scan`]
//! looks for them.

use std::cell::RefCell;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use super::output;
use super::table::{self, Results};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::results::result::{LIMITS_FILE, RESULT_FILE, SUMMARY_FILE};

mod formula;
mod others;
mod scan;
#[cfg(test)]
mod tests;

/// The runs that documents show, in the order of their tables.
const RUNS: &str = include_str!("../../../../../../docs/results/runs.txt");
/// Runs with a table of their own.
const ATTACKS: [&str; 2] = ["hostile", "hostile-before"];
/// Folders of dated pages. Their figures are of the commits and machines that each page names, and are not renewed.
const DATED: [&str; 2] = ["docs/decisions", "docs/internals/lab"];
/// Name of the result with the limits of one core.
const LIMITS: &str = "limits";
/// Name of the mark with versions, commits and days.
const AGE: &str = "age";

/// Arguments of `batzen-lab bench figures`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  batzen-lab bench figures --check\n  batzen-lab bench figures --results my-results my-performance.md"
)]
pub struct FiguresArgs {
    /// Documents with figures [default: README.md and those below docs, but for dated notes and decisions]
    #[arg(value_name = "FILE")]
    documents: Vec<PathBuf>,
    /// The directory with the results
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    results: PathBuf,
    /// Change nothing: list figures that differ from their results, and those that have none
    #[arg(long)]
    check: bool,
}

/// Runs `batzen-lab bench figures`. Exit code 1: the check found something.
///
/// # Errors
/// When a result or a document cannot be read, and when a document names figures that no result has.
pub fn run(args: &FiguresArgs) -> Result<ExitCode> {
    let root = Path::new("");
    let documents = if args.documents.is_empty() { documents(root)? } else { args.documents.clone() };
    let kept = Kept::read(&args.results)?;
    if args.check {
        let found = check(root, &documents, &kept)?;
        output::print(&found.iter().map(|line| format!("{line}\n")).collect::<String>())?;
        return Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    for path in documents {
        let text = std::fs::read_to_string(&path).map_err(BenchError::io(&path))?;
        let renewed = kept.renew(&text).map_err(|error| usage(&path, &error))?;
        if renewed != text {
            output::replace_file(&path, &renewed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn usage(path: &Path, error: &str) -> BenchError {
    BenchError::Usage(format!("{}: {error}", path.display()))
}

/// The documents of the project below its root, in the order of their names.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(BenchError::io(&folder))?;
        for path in entries.map(|entry| entry.map(|entry| entry.path())) {
            let path = path.map_err(BenchError::io(&folder))?;
            if path.is_dir() {
                if !DATED.iter().any(|dated| path == root.join(dated)) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Everything that is wrong with the figures of some documents, a line each.
fn check(root: &Path, documents: &[PathBuf], kept: &Kept) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in documents {
        let text = std::fs::read_to_string(path).map_err(BenchError::io(path))?;
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        match kept.renew(&text) {
            Ok(renewed) => found.extend(differences(&text, &renewed).map(|line| format!("{name}:{line}"))),
            Err(error) => found.push(format!("{name}: {error}")),
        }
        found.extend(scan::scan(&name, &text, &others::OTHERS).map(|line| format!("{name}:{line}")));
    }
    Ok(found)
}

/// The first line that renewing changes.
fn differences(text: &str, renewed: &str) -> impl Iterator<Item = String> {
    let changed = (text != renewed).then(|| {
        let lines = text.lines().zip(renewed.lines());
        let number = lines.take_while(|(old, new)| old == new).count();
        let expected = renewed.lines().nth(number).unwrap_or_default();
        format!("{}: not as its result says, which is: {expected}", number + 1)
    });
    changed.into_iter()
}

/// The kept results.
struct Kept {
    root: PathBuf,
    runs: Results,
    attacks: Results,
    /// Files that were read, by the name of their result.
    files: RefCell<BTreeMap<String, Value>>,
}

/// Names of results that a document shows.
type Used = RefCell<BTreeSet<String>>;

impl Kept {
    fn read(root: &Path) -> Result<Self> {
        let listed = RUNS.lines().filter(|line| !line.starts_with('#'));
        let names = listed.filter_map(|line| line.split_whitespace().next()).chain([LIMITS]);
        let present = |name: &str| Some(root.join(name)).filter(|directory| directory.is_dir());
        let runs: Vec<PathBuf> = names.filter_map(present).collect();
        let attacks: Vec<PathBuf> = ATTACKS.into_iter().filter_map(present).collect();
        Ok(Self {
            root: root.to_owned(),
            runs: Results::read(&runs)?,
            attacks: Results::read(&attacks)?,
            files: RefCell::default(),
        })
    }

    /// The document with figures as the results say.
    fn renew(&self, document: &str) -> Result<String, String> {
        let used = Used::default();
        let with_tables = table::renew(document, |name| self.block(name, None, &used))?;
        let renewed = formula::renew(&with_tables, |formula| self.figure(formula, &used))?;
        if used.borrow().is_empty() {
            return Ok(renewed);
        }
        if !document.lines().any(|line| line.trim() == format!("<!-- bench: {AGE} -->")) {
            return Err(format!(
                "it has figures, so it must show their age: put <!-- bench: {AGE} --> and <!-- bench: end --> on lines of their own"
            ));
        }
        let age = self.age(&used.borrow())?;
        table::renew(&renewed, |name| self.block(name, Some(&age), &used))
    }

    fn block(&self, name: &str, age: Option<&str>, used: &Used) -> Result<String, String> {
        if name == AGE {
            return Ok(age.unwrap_or_default().to_owned());
        }
        let results = if name == ATTACKS[0] { &self.attacks } else { &self.runs };
        let table = table::find(name)?;
        let mut used = used.borrow_mut();
        let shown = results.runs.iter().filter(|run| (table.shows)(run));
        let names = shown.filter_map(|run| run.path.strip_prefix(&self.root).ok());
        used.extend(names.map(|name| name.display().to_string()));
        used.extend(table.shows_limits.then(|| LIMITS.to_owned()));
        Ok((table.text)(results))
    }

    fn figure(&self, text: &str, used: &Used) -> Result<String, String> {
        formula::evaluate(text, |name| {
            if let Some(options) = formula::plan(name) {
                let (plan, results) = formula::compute(options?, &self.root)?;
                let kept = results.into_iter().filter(|name| self.file(name).is_ok());
                used.borrow_mut().extend(kept);
                return Ok(plan);
            }
            let value = self.file(name)?;
            used.borrow_mut().insert(name.to_owned());
            Ok(value)
        })
    }

    /// The file of a result.
    fn file(&self, name: &str) -> Result<Value, String> {
        if let Some(value) = self.files.borrow().get(name) {
            return Ok(value.clone());
        }
        let directory = self.root.join(name);
        let own = format!("{name}.json");
        let path = [RESULT_FILE, LIMITS_FILE, SUMMARY_FILE, &own].map(|file| directory.join(file));
        let path = path.iter().find(|path| path.is_file());
        let path = path.ok_or_else(|| format!("there is no result {name:?}"))?;
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        self.files.borrow_mut().insert(name.to_owned(), value.clone());
        Ok(value)
    }

    /// Versions, commits and days of results; those of other systems have none.
    fn age(&self, names: &BTreeSet<String>) -> Result<String, String> {
        let mut versions: BTreeMap<String, Build> = BTreeMap::new();
        for name in names {
            let file = self.file(name)?;
            let text = |key: &str| file.get(key).and_then(Value::as_str).map(str::to_owned);
            let Some(version) = text("version") else { continue };
            let build = versions.entry(version).or_default();
            build.names.push(name);
            build.commits.extend(text("commit").filter(|commit| commit != "unknown"));
            build.days.extend(text("started").and_then(|started| started.get(..10).map(str::to_owned)));
        }
        // The version of most figures comes first, and need not name them.
        let mut versions: Vec<(String, Build)> = versions.into_iter().collect();
        versions.sort_by_key(|(_, build)| Reverse(build.names.len()));
        let lines = versions.iter().enumerate().map(|(index, (version, build))| {
            let of = if index == 0 {
                "Throughputs and costs on this page are".to_owned()
            } else {
                format!("Those of {} are", build.names.join(", "))
            };
            format!("{of} of {}\n", build.words(version, env!("CARGO_PKG_VERSION")))
        });
        let text: String = lines.collect();
        Ok(if text.is_empty() {
            "Throughputs and costs on this page are of other systems.\n".to_owned()
        } else {
            text
        })
    }
}

/// Results of one version.
#[derive(Default)]
struct Build<'a> {
    names: Vec<&'a str>,
    commits: BTreeSet<String>,
    days: BTreeSet<String>,
}

impl Build<'_> {
    fn words(&self, version: &str, current: &str) -> String {
        let minor = |version: &str| -> Vec<u64> {
            version.split('.').take(2).map(|part| part.parse().unwrap_or_default()).collect()
        };
        let age = match minor(version).cmp(&minor(current)) {
            Ordering::Equal => String::new(),
            Ordering::Less => format!(", **older than this version, {current}**"),
            Ordering::Greater => format!(", newer than this version, {current}"),
        };
        let commits: Vec<&str> = self.commits.iter().map(String::as_str).collect();
        let commits = match commits.len() {
            0 => String::new(),
            1 => format!(" (commit {})", commits[0]),
            _ => format!(" (commits {})", commits.join(", ")),
        };
        let days = match (self.days.first(), self.days.last()) {
            (Some(first), Some(last)) if first == last => format!(", measured on {first}"),
            (Some(first), Some(last)) => format!(", measured {first} to {last}"),
            _ => String::new(),
        };
        format!("Batzen {version}{commits}{days}{age}.")
    }
}
