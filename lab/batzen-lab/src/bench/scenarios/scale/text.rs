//! A result for people.

use std::fmt::Write as _;

use batzen_cli_support::numbers::{number, ratio};

use super::GOAL_CORES;
use super::law::Law;
use super::projection::{COMMIT, Growth, Projection};
use super::result::{Basis, Goal, ScaleKind, ScaleResult};
use crate::bench::results::words;

/// The stages with threads of their own, and their names.
const STAGES: [(&str, &str); 4] =
    [("http", "HTTP"), ("cpu", "cryptography"), ("lane", "lanes"), ("store", "upkeep")];

fn name(stage: &str) -> &str {
    match stage {
        COMMIT => "commits, one at a time",
        stage => STAGES.iter().find(|(role, _)| *role == stage).map_or(stage, |(_, name)| name),
    }
}

pub(crate) fn table(result: &ScaleResult) -> String {
    let mut text = format!(
        "coins withdrawn and deposited, {}, {} clients a core, {} rounds; {}, {} cores\n",
        result.cipher, result.clients_per_core, result.rounds, result.machine.model, result.machine.cores
    );
    for kind in &result.kinds {
        runs(&mut text, kind);
        law(&mut text, kind);
        stages(&mut text, kind);
        projections(&mut text, kind);
        for goal in &kind.goals {
            let _ = writeln!(text, "  {}", goal_line(goal));
        }
    }
    text.push('\n');
    for remark in &result.remarks {
        let _ = writeln!(text, "* {remark}");
    }
    text
}

/// The title of a kind.
pub(crate) fn coins(coins_per_request: u32) -> String {
    format!("{} a request", words::coins(coins_per_request.into()))
}

fn runs(text: &mut String, kind: &ScaleKind) {
    let _ = writeln!(text, "\n{}\n", coins(kind.coins_per_request));
    let _ = write!(text, "  {:>5} {:>10} {:>8}", "cores", "coins/s", "CPU µs");
    for (_, stage) in STAGES {
        let _ = write!(text, " {stage:>13}");
    }
    let _ = writeln!(text, " {:>10} {:>14} {:>7}", "serial µs", "coins a write", "others");
    for run in &kind.runs {
        let _ = write!(
            text,
            "  {:>4}{} {:>10} {:>8}",
            run.cores,
            if run.is_shared { '*' } else { ' ' },
            number(run.coins_per_s),
            number(run.cpu_us_per_coin)
        );
        for (role, _) in STAGES {
            let us = run.cpu_us_per_coin_by_stage.get(role).copied().unwrap_or(0.0);
            let _ = write!(text, " {:>13}", number(us));
        }
        let _ = writeln!(
            text,
            " {:>10} {:>14} {:>6.0}%",
            number(run.serial_cpu_us_per_coin),
            number(run.coins_per_frame),
            100.0 * run.foreign_share.max(0.0)
        );
    }
    if kind.runs.iter().any(|run| run.is_shared) {
        text.push_str("  * the load generator shares the server's cores and is one of the others\n");
    }
}

/// The lowest and the highest of the rounds.
fn spread(laws: &[Law], constant: fn(&Law) -> f64) -> (f64, f64) {
    laws.iter()
        .map(constant)
        .fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(value), high.max(value)))
}

fn law(text: &mut String, kind: &ScaleKind) {
    let (law, laws) = (&kind.law, &kind.round_laws);
    let constant = |constant: fn(&Law) -> f64| {
        let (low, high) = spread(laws, constant);
        format!("{:.4} ({low:.4} to {high:.4})", constant(law))
    };
    let (low, high) = spread(laws, |law| law.one_core_coins_per_s);
    let basis = match kind.basis {
        Basis::Clock => "the clock",
        Basis::Cpu => "processor time",
    };
    let _ = writeln!(
        text,
        "\n  one core, by {basis}: {} coins/s ({} to {}); σ {}, κ {}; deviation {:.1} %\n  \
         serial part of a coin: {:.4}, so the projection takes σ {:.4}, from {}",
        number(law.one_core_coins_per_s),
        number(low),
        number(high),
        constant(|law| law.sigma),
        if kind.identified > 2 { constant(|law| law.kappa) } else { "not determined".to_owned() },
        100.0 * kind.law_error,
        kind.serial_share,
        law.sigma.max(kind.serial_share),
        if law.sigma >= kind.serial_share { "the measured ratio" } else { "the serial part" }
    );
    for row in &kind.lanes {
        let _ = writeln!(
            text,
            "  {} {} alone: {} coins/s ({}), CPU {} µs a coin, serial {} µs",
            row.lanes,
            if row.lanes == 1 { "lane" } else { "lanes" },
            number(row.coins_per_s),
            ratio(row.ratio),
            number(row.lane_cpu_us_per_coin),
            number(row.serial_cpu_us_per_coin)
        );
    }
}

fn stages(text: &mut String, kind: &ScaleKind) {
    let largest = kind.projections.last().map_or(0, |projection| projection.cores);
    let _ = writeln!(text, "\n  {:<28} {:>10}   {:<18} at most", "stage", "µs a coin", "threads");
    for stage in &kind.stages {
        let threads = match stage.growth {
            Growth::Cores => "one a core",
            Growth::Lanes => "one for four cores",
            Growth::Alone => "one",
        };
        let ceiling = kind.ceilings.iter().find(|ceiling| ceiling.stage == stage.name);
        let _ = writeln!(
            text,
            "  {:<28} {:>10}   {threads:<18} {}",
            if stage.name == COMMIT {
                format!("  of it {}", name(COMMIT))
            } else {
                name(&stage.name).to_owned()
            },
            number(stage.cpu_us_per_coin),
            ceiling
                .map_or_else(|| "–".to_owned(), |ceiling| format!("{} coins/s", number(ceiling.coins_per_s)))
        );
    }
    let first = kind.ceilings.iter().min_by(|one, other| one.coins_per_s.total_cmp(&other.coins_per_s));
    if let Some(first) = first {
        let _ = writeln!(
            text,
            "  saturates first on {largest} cores: {}, at {} coins/s",
            name(&first.stage),
            number(first.coins_per_s)
        );
    }
}

fn projections(text: &mut String, kind: &ScaleKind) {
    let _ =
        write!(text, "\n  {:>5} {:>10} {:>10} {:>10}  {:<22}", "cores", "coins/s", "low", "high", "limit");
    for (_, stage) in STAGES {
        let _ = write!(text, " {stage:>12}");
    }
    text.push_str("  (busy cores)\n");
    for at in &kind.projections {
        let limit = name(&at.limit);
        let _ = write!(
            text,
            "  {:>5} {:>10} {:>10} {:>10}  {limit:<22}",
            at.cores,
            number(at.coins_per_s),
            number(at.low_coins_per_s),
            number(at.high_coins_per_s),
        );
        for (role, _) in STAGES {
            let _ = write!(text, " {:>12}", number(at.cores_by_stage.get(role).copied().unwrap_or(0.0)));
        }
        text.push('\n');
    }
    text.push('\n');
}

fn goal_line(goal: &Goal) -> String {
    let wanted = number(goal.coins_per_s);
    let verdict = if goal.is_reached { "reached" } else { "missed" };
    match (&goal.projection, &goal.ceiling) {
        (Some(Projection { coins_per_s, low_coins_per_s, high_coins_per_s, .. }), _) => {
            let cores = goal
                .cores_needed
                .map(|cores| cores.map_or_else(|| "none".to_owned(), |cores| cores.to_string()));
            format!(
                "goal {wanted} coins/s on {GOAL_CORES} cores: {verdict}, {} ({} to {}); cores that reach it: {} ({} to {})",
                number(*coins_per_s),
                number(*low_coins_per_s),
                number(*high_coins_per_s),
                cores[0],
                cores[2],
                cores[1]
            )
        }
        (None, Some(ceiling)) => format!(
            "goal no stage below {wanted} coins/s: {verdict}, the lowest is {}, {}",
            name(&ceiling.stage),
            number(ceiling.coins_per_s)
        ),
        (None, None) => format!("goal no stage below {wanted} coins/s: {verdict}, no stage has a ceiling"),
    }
}
