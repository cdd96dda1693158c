//! `batzen-lab bench compare A B`: which figures are better, and which are worse.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use batzen_cli_support::numbers::{gigabytes, number, ratio};
use serde::Serialize;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::results::output;
use crate::bench::results::report::plain;
use crate::bench::results::result::{BUILD_PROFILE, ResultError, Run, RunResult, UNKNOWN};
use crate::bench::results::words::{cores, load};

/// Arguments of `batzen-lab bench compare`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A and B are result directories, or directories with the results of several runs of the same scenario. Medians are
compared. A figure is better or worse only if each side has at least three runs, and every run of one side is better than
every run of the other; otherwise a difference is unclear. What is not the same in all runs, or not known to be, comes
first: versions, commits, build profiles, ciphers, machines, other parameters.

Examples:
  for n in 1 2 3; do batzen-lab bench deposit --out before/$n; done
  batzen-lab bench compare before after
  batzen-lab bench compare docs/results/deposit my-deposit --noise 5 --json"
)]
pub struct CompareArgs {
    /// The result, or results, to compare with
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The result, or results, to judge
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Treat differences up to this many percent as equal
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    noise: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The comparison of B with A in one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// B is better.
    Better,
    /// B is worse.
    Worse,
    /// The difference is within the noise.
    Same,
    /// There are fewer than three runs on a side, or the runs of the two sides overlap.
    Unclear,
}

/// Runs on each side without which a difference may be chance.
const REPEATS_MIN: usize = 3;

/// One figure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figure {
    /// Its name, as in `result.json`.
    pub(crate) name: String,
    /// In A: the median of its runs.
    pub(crate) a: f64,
    /// In B: the median of its runs.
    pub(crate) b: f64,
    /// B ÷ A; none if A is zero.
    pub(crate) ratio: Option<f64>,
    /// The lowest and the highest in A.
    pub(crate) a_range: (f64, f64),
    /// The same in B.
    pub(crate) b_range: (f64, f64),
    /// The verdict on the ratio.
    pub(crate) verdict: Verdict,
}

/// A property that must be equal in all runs for the figures to be comparable, but is not, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    pub(crate) name: String,
    /// In A, the values of its runs; none if absent.
    pub(crate) a: Option<String>,
    /// In B; none if absent.
    pub(crate) b: Option<String>,
}

/// Two runs compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    /// Differences other than the figures: scenario, build, machine, parameters.
    pub(crate) differences: Vec<Difference>,
    /// Title of A.
    pub(crate) a: String,
    /// Title of B.
    pub(crate) b: String,
    pub(crate) a_runs: usize,
    pub(crate) b_runs: usize,
    /// Results that are no figures, such as the bottleneck of an experiment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) outcomes: Vec<Difference>,
    /// The figures that both runs have.
    pub(crate) figures: Vec<Figure>,
}

/// The figures of a run: name, value, and whether more is better.
fn figures(result: &RunResult) -> Vec<(String, Option<f64>, bool)> {
    let latency = result.latency;
    let us =
        |pick: fn(crate::bench::results::result::Latency) -> u64| latency.map(|latency| pick(latency) as f64);
    let mut all = vec![
        ("ops_per_s".to_owned(), Some(result.ops_per_s), true),
        ("efficiency".to_owned(), result.efficiency, true),
        ("ceiling_ops_per_s".to_owned(), result.ceiling_ops_per_s, true),
        ("p50_us".to_owned(), us(|latency| latency.p50_us), false),
        ("p90_us".to_owned(), us(|latency| latency.p90_us), false),
        ("p99_us".to_owned(), us(|latency| latency.p99_us), false),
        ("p999_us".to_owned(), us(|latency| latency.p999_us), false),
        ("max_us".to_owned(), us(|latency| latency.max_us), false),
        ("cpu_us_per_op".to_owned(), result.cpu_us_per_op, false),
    ];
    for (stage, us) in &result.cpu_us_per_op_by_stage {
        all.push((format!("cpu_us_per_op: {stage}"), Some(*us), false));
    }
    all.push(("bytes_per_op: disk".to_owned(), result.bytes_per_op.map(|bytes| bytes.disk), false));
    all.push(("bytes_per_op: ram".to_owned(), result.bytes_per_op.map(|bytes| bytes.ram), false));
    all.push(("client_cpu_us_per_op".to_owned(), result.client_cpu_us_per_op, false));
    all.push(("errors".to_owned(), Some(result.error_count() as f64), false));
    all
}

/// The values of one figure in all runs of a side.
#[derive(Clone, Debug)]
struct Values(Vec<f64>);

impl Values {
    /// None if there are no runs, or one of them lacks the figure.
    fn of(values: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let mut values = values.into_iter().collect::<Option<Vec<f64>>>()?;
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then_some(Self(values))
    }

    fn median(&self) -> f64 {
        let (low, high) = (self.0[(self.0.len() - 1) / 2], self.0[self.0.len() / 2]);
        f64::midpoint(low, high)
    }

    fn range(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }
}

/// A figure of both sides from its values in their runs; none if one of the runs lacks it.
pub(crate) fn figure<Side: IntoIterator<Item = Option<f64>>>(
    name: &str,
    (a, b): (Side, Side),
    more_is_better: bool,
    noise: f64,
) -> Option<Figure> {
    let (of_a, of_b) = (Values::of(a)?, Values::of(b)?);
    let (before, after) = (of_a.median(), of_b.median());
    Some(Figure {
        name: name.to_owned(),
        a: before,
        b: after,
        ratio: (before != 0.0).then(|| after / before),
        a_range: of_a.range(),
        b_range: of_b.range(),
        verdict: verdict(&of_a, &of_b, more_is_better, noise),
    })
}

fn verdict(a: &Values, b: &Values, more_is_better: bool, noise: f64) -> Verdict {
    let (before, after) = (a.median(), b.median());
    let (is_rise, is_fall) = (b.range().0 > a.range().1, b.range().1 < a.range().0);
    if (after - before).abs() <= noise * before.abs() {
        Verdict::Same
    } else if a.0.len().min(b.0.len()) < REPEATS_MIN || !(is_rise || is_fall) {
        Verdict::Unclear
    } else if is_rise == more_is_better {
        Verdict::Better
    } else {
        Verdict::Worse
    }
}

/// The name of the parameter with the cipher and its size.
const CIPHER: &str = "cipher";

/// The profile that a run was built with. Results of earlier versions tell only of debug builds, in a remark.
fn build_profile(result: &RunResult) -> Option<String> {
    let was_debug = || result.remarks.iter().any(|remark| remark.starts_with("a debug build"));
    result.parameters.get(BUILD_PROFILE).map(plain).or_else(|| was_debug().then(|| "dev".to_owned()))
}

/// Returns whether an equal text in two results means an equal thing: a commit with changes names no code.
fn is_definite(text: &str) -> bool {
    text != UNKNOWN && !text.ends_with("-dirty")
}

/// The values of a property in the runs of both sides, which need not differ.
pub(crate) fn values(
    name: &str,
    (of_a, of_b): (BTreeSet<Option<String>>, BTreeSet<Option<String>>),
) -> Difference {
    let text = |values: BTreeSet<Option<String>>| {
        let is_absent = values.iter().all(Option::is_none);
        let texts = values.into_iter().map(|value| value.unwrap_or_else(absent));
        (!is_absent).then(|| texts.collect::<Vec<_>>().join(", "))
    };
    Difference { name: name.to_owned(), a: text(of_a), b: text(of_b) }
}

/// A property that is not the same in all runs of both sides, or not known to be where it must be.
pub(crate) fn difference(
    name: &str,
    sides: (BTreeSet<Option<String>>, BTreeSet<Option<String>>),
    must_be_known: bool,
) -> Option<Difference> {
    let (of_a, of_b) = &sides;
    let is_known = !must_be_known || of_a.iter().all(|value| value.as_deref().is_some_and(is_definite));
    let is_same = of_a == of_b && of_a.len() == 1 && is_known;
    (!is_same).then(|| values(name, sides))
}

fn differences(a: &[RunResult], b: &[RunResult]) -> Vec<Difference> {
    let mut all: Vec<Difference> = Vec::new();
    let mut add = |name: &str, pick: &dyn Fn(&RunResult) -> Option<String>, must_be_known: bool| {
        let sides = (a.iter().map(pick).collect(), b.iter().map(pick).collect());
        all.extend(difference(name, sides, must_be_known));
    };
    let parameter = |name: &str, result: &RunResult| result.parameters.get(name).map(plain);
    add("scenario", &|result| Some(result.scenario.clone()), false);
    add("version", &|result| Some(result.version.clone()), true);
    add("commit", &|result| Some(result.commit.clone()), true);
    add("build profile", &build_profile, true);
    add(CIPHER, &|result| parameter(CIPHER, result), false);
    add("machine", &|result| Some(result.machine.model.clone()), true);
    add("machine's cores", &|result| Some(result.machine.cores.to_string()), false);
    add("machine's extensions", &|result| Some(result.machine.flags.join(" ")), false);
    add("machine's memory, GB", &|result| Some(gigabytes(result.machine.memory_bytes)), false);
    add("kernel", &|result| Some(result.machine.kernel.clone()), false);
    add("unit", &|result| Some(result.unit.clone()), false);
    add("load", &|result| Some(load(&result.load)), false);
    add("server's cores", &|result| Some(cores(&result.server_cores)), false);
    add("load generator's cores", &|result| Some(cores(&result.client_cores)), false);
    add("limited by", &|result| Some(format!("{:?}", result.limited_by).to_lowercase()), false);
    let names: BTreeSet<&String> = a.iter().chain(b).flat_map(|run| run.parameters.keys()).collect();
    for name in names.into_iter().filter(|name| ![CIPHER, BUILD_PROFILE].contains(&name.as_str())) {
        add(name, &|result| parameter(name, result), false);
    }
    all
}

/// Compares the runs of two sides; `noise` is the share by which figures may differ without significance.
///
/// # Panics
/// If a side has no run.
pub(crate) fn compare(a: &[RunResult], b: &[RunResult], noise: f64) -> Comparison {
    let value = |run: &RunResult, name: &str| figures(run).into_iter().find(|(other, ..)| other == name)?.1;
    let figures = figures(&a[0])
        .into_iter()
        .filter_map(|(name, _, more_is_better)| {
            let of = |runs: &[RunResult]| runs.iter().map(|run| value(run, &name)).collect::<Vec<_>>();
            figure(&name, (of(a), of(b)), more_is_better, noise)
        })
        .collect();
    Comparison {
        differences: differences(a, b),
        a: a[0].title.clone(),
        b: b[0].title.clone(),
        a_runs: a.len(),
        b_runs: b.len(),
        outcomes: Vec::new(),
        figures,
    }
}

/// The result in a directory, or the results in its subdirectories, which must be of one scenario.
fn read_runs(directory: &Path) -> Result<Vec<RunResult>> {
    let runs = match Run::read(directory) {
        Err(ResultError::NoResult { below, .. }) if !below.is_empty() => {
            below.iter().map(|path| Run::read(path)).collect::<Result<Vec<_>, _>>()?
        }
        other => vec![other?],
    };
    let runs: Vec<RunResult> = runs.into_iter().map(|run| run.result).collect();
    if runs.iter().any(|run| run.scenario != runs[0].scenario) {
        let text = format!("{}: the results in it are of different scenarios", directory.display());
        return Err(BenchError::Usage(text));
    }
    Ok(runs)
}

/// Runs `batzen-lab bench compare`.
///
/// # Errors
/// When a result cannot be read.
pub fn run(args: &CompareArgs) -> Result<ExitCode> {
    let noise = noise_share(args.noise)?;
    let (before, after) = (read_runs(&args.before)?, read_runs(&args.after)?);
    let comparison = compare(&before, &after, noise);
    output::print(&if args.json { output::json(&comparison) } else { table(&comparison) })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn absent() -> String {
    "–".to_owned()
}

impl Verdict {
    /// A word, if there is something to say.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "",
            Self::Unclear => "unclear",
        }
    }
}

/// Checks the share that `--noise` names, in percent, and returns it as a share of one.
pub(crate) fn noise_share(percent: f64) -> Result<f64> {
    if (0.0..=100.0).contains(&percent) {
        return Ok(percent / 100.0);
    }
    Err(BenchError::Usage("--noise: expected 0 to 100 percent".into()))
}

/// A number of runs in words.
pub(crate) fn runs(count: usize) -> String {
    if count == 1 { "1 run".to_owned() } else { format!("median of {count} runs") }
}

/// A comparison as text.
pub(crate) fn table(comparison: &Comparison) -> String {
    let mut text = String::new();
    let rows = |text: &mut String, differences: &[Difference]| {
        for difference in differences {
            let (a, b) = (difference.a.clone(), difference.b.clone());
            let (a, b) = (a.unwrap_or_else(absent), b.unwrap_or_else(absent));
            let _ = writeln!(text, "  {:<24} {a}  →  {b}", difference.name);
        }
        text.push('\n');
    };
    if !comparison.differences.is_empty() {
        text.push_str("Not the same in A and B, or not known to be, so judge with care:\n");
        rows(&mut text, &comparison.differences);
    }
    let _ = writeln!(text, "A  {}  ({})", comparison.a, runs(comparison.a_runs));
    let _ = writeln!(text, "B  {}  ({})\n", comparison.b, runs(comparison.b_runs));
    if !comparison.outcomes.is_empty() {
        rows(&mut text, &comparison.outcomes);
    }
    let _ = writeln!(text, "{:<26} {:>12} {:>12} {:>8}", "", "A", "B", "B ÷ A");
    for figure in &comparison.figures {
        let ratio = figure.ratio.map_or_else(absent, ratio);
        let line = format!(
            "{:<26} {:>12} {:>12} {ratio:>8}  {}",
            figure.name,
            number(figure.a),
            number(figure.b),
            figure.verdict.word()
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let is_unclear = comparison.figures.iter().any(|figure| figure.verdict == Verdict::Unclear);
    if is_unclear && comparison.a_runs.min(comparison.b_runs) < REPEATS_MIN {
        let _ = writeln!(
            text,
            "\nRun each side at least {REPEATS_MIN} times before you call a figure better or worse: see --help."
        );
    } else if is_unclear {
        text.push_str("\nUnclear: the runs of the two sides overlap.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::result::tests::sample_run;

    /// A result of a known build.
    fn known() -> RunResult {
        let mut result = sample_run(Path::new("a")).result;
        result.commit = "1a2b3c4".to_owned();
        result.parameters.insert(BUILD_PROFILE.to_owned(), "dist".into());
        result
    }

    #[test]
    fn better_and_worse_depend_on_the_figure() {
        let a = known();
        let mut b = a.clone();
        (b.ops_per_s, b.cpu_us_per_op) = (18_000.0, Some(216.0));
        b.latency.as_mut().unwrap().p99_us /= 2;
        b.bytes_per_op = None;
        b.errors.clear();
        let repeated = |result: &RunResult| vec![result.clone(); 3];
        let comparison = compare(&repeated(&a), &repeated(&b), 0.03);
        assert!(comparison.differences.is_empty(), "{:?}", comparison.differences);
        let figure = |name: &str| comparison.figures.iter().find(|figure| figure.name == name);
        let judged = |name: &str| figure(name).map(|figure| (figure.ratio, figure.verdict));
        assert_eq!(judged("ops_per_s"), Some((Some(2.0), Verdict::Better)));
        assert_eq!(judged("cpu_us_per_op"), Some((Some(2.0), Verdict::Worse)));
        assert_eq!(judged("p99_us").unwrap().1, Verdict::Better);
        assert_eq!(judged("p50_us"), Some((Some(1.0), Verdict::Same)));
        assert_eq!(judged("errors"), Some((Some(0.0), Verdict::Better)));
        assert_eq!(judged("bytes_per_op: disk"), None, "only what both have");
        let text = table(&comparison);
        assert!(
            text.contains("ops_per_s                         9,000       18,000     2.00  better\n"),
            "{text}"
        );
        assert!(
            text.contains("errors                                2            0     0.00  better\n")
                || text.contains("errors"),
            "{text}"
        );
        assert!(!text.contains("Not the same"));
        assert!(text.starts_with("A  withdraw") && text.contains("(median of 3 runs)"), "{text}");
        let judge =
            |a: &[f64], b: &[f64], more| verdict(&Values(a.to_vec()), &Values(b.to_vec()), more, 0.03);
        assert_eq!(judge(&[100.0; 3], &[103.0; 3], true), Verdict::Same);
        assert_eq!(judge(&[0.0; 3], &[1.0; 3], false), Verdict::Worse);
        assert_eq!(
            judge(&[90.0, 100.0, 110.0], &[105.0, 120.0, 130.0], true),
            Verdict::Unclear,
            "they overlap"
        );
        assert_eq!(judge(&[90.0, 100.0, 110.0], &[115.0, 120.0, 130.0], true), Verdict::Better);
        assert_eq!(judge(&[100.0], &[50.0], true), Verdict::Unclear, "one run may be chance");
        // One run on a side says only that there is a difference.
        let single = table(&compare(&[a], &[b], 0.03));
        assert!(single.contains("2.00  unclear\n") && !single.contains("worse\n"), "{single}");
        assert!(single.contains("at least 3 times"), "{single}");
    }

    #[test]
    fn a_directory_may_hold_several_runs() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one", "two", "three"] {
            sample_run(&dir.path().join(name)).write().unwrap();
        }
        assert_eq!(read_runs(dir.path()).unwrap().len(), 3);
        assert_eq!(read_runs(&dir.path().join("one")).unwrap().len(), 1);
        let mut other = sample_run(&dir.path().join("other"));
        other.result.scenario = "refresh".to_owned();
        other.write().unwrap();
        assert!(read_runs(dir.path()).unwrap_err().to_string().contains("different scenarios"));
    }

    #[test]
    fn differences_that_make_figures_incomparable_are_named() {
        let a = known();
        let mut b = a.clone();
        b.machine.model = "another".into();
        b.server_cores = vec![0, 1];
        b.parameters.insert("rsa_bits".into(), 1024.into());
        b.parameters.insert("batch".into(), 8.into());
        let comparison = compare(&[a], &[b], 0.03);
        let names: Vec<&str> =
            comparison.differences.iter().map(|difference| difference.name.as_str()).collect();
        assert_eq!(names, ["machine", "server's cores", "batch", "rsa_bits"]);
        let text = table(&comparison);
        assert!(
            text.starts_with("Not the same in A and B, or not known to be, so judge with care:\n"),
            "{text}"
        );
        assert!(text.contains("  rsa_bits                 2048  →  1024\n"), "{text}");
        assert!(text.contains("  batch                    –  →  8\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&output::json(&comparison)).unwrap();
        assert_eq!(json["differences"][2]["a"], serde_json::Value::Null);
        assert_eq!(json["figures"][0]["verdict"], "same");
    }

    #[test]
    fn other_builds_machines_and_key_sizes_come_first() {
        let mut a = known();
        a.parameters.insert(CIPHER.to_owned(), "RSA-2048".into());
        let named = |change: &dyn Fn(&mut RunResult)| {
            let mut b = a.clone();
            change(&mut b);
            // The other run of B is as A: none of the runs is left out.
            let comparison = compare(std::slice::from_ref(&a), &[a.clone(), b], 0.03);
            let names: Vec<String> =
                comparison.differences.iter().map(|difference| difference.name.clone()).collect();
            assert_eq!(table(&comparison).starts_with("Not the same"), !names.is_empty());
            names.join(", ")
        };
        assert_eq!(named(&|_| ()), "");
        assert_eq!(named(&|b| b.version = "9.9.9".to_owned()), "version");
        assert_eq!(named(&|b| b.commit = "5d6e7f8".to_owned()), "commit");
        let profile = |b: &mut RunResult| b.parameters.insert(BUILD_PROFILE.to_owned(), "release".into());
        assert_eq!(named(&|b| drop(profile(b))), "build profile");
        let cipher = |b: &mut RunResult| b.parameters.insert(CIPHER.to_owned(), "RSA-1024".into());
        assert_eq!(named(&|b| drop(cipher(b))), CIPHER);
        assert_eq!(named(&|b| b.machine.memory_bytes = 1 << 40), "machine's memory, GB");
        let text = table(&compare(&[a.clone()], &[RunResult { version: "9.9.9".to_owned(), ..a }], 0.03));
        assert!(text.contains("  version                  0.1.0  →  9.9.9\n\nA  withdraw"), "{text}");
    }

    #[test]
    fn builds_that_are_not_known_may_differ() {
        let mut result = known();
        result.parameters.remove(BUILD_PROFILE);
        result.commit = "1a2b3c4-dirty".to_owned();
        let between = |a: &RunResult, b: &RunResult| {
            let found = compare(std::slice::from_ref(a), std::slice::from_ref(b), 0.03).differences;
            found.into_iter().map(|found| (found.name, found.a, found.b)).collect::<Vec<_>>()
        };
        let some = |text: &str| Some(text.to_owned());
        let commit = ("commit".to_owned(), some("1a2b3c4-dirty"), some("1a2b3c4-dirty"));
        assert_eq!(between(&result, &result), [commit.clone(), ("build profile".to_owned(), None, None)]);
        let mut debug = result.clone();
        debug.remarks.push("a debug build: the figures say nothing about speed".to_owned());
        assert_eq!(between(&result, &debug), [commit, ("build profile".to_owned(), None, some("dev"))]);
    }
}
