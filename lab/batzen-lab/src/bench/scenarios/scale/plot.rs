//! A page with a plot of each projection.

use std::fmt::Write as _;

use batzen_cli_support::numbers::short;
use batzen_http::escape_html;
use batzen_http::plot::{Line, LinePlot};

use super::projection::Projection;
use super::result::{Basis, ScaleKind, ScaleResult};
use super::{PROJECTED_CORES, point, text};
use crate::bench::results::report::{END, begin, legend};

/// Names of the lines and their colours, without the measured points.
const LAW: (&str, usize) = ("projected", 0);
const LOW: (&str, usize) = ("low", 6);
const HIGH: (&str, usize) = ("high", 2);
/// Measured points.
const MEASURED: (&str, usize) = ("measured", 1);

/// The page; it needs no network.
pub(crate) fn page(result: &ScaleResult) -> String {
    let mut out = String::new();
    begin(&mut out, "Coins per second on more cores");
    let _ = writeln!(
        out,
        "<p>Coins withdrawn and deposited, {}; measured on {}, {} cores.</p>",
        escape_html(&result.cipher),
        escape_html(&result.machine.model),
        result.machine.cores
    );
    for kind in &result.kinds {
        let _ = writeln!(out, "<h2>{}</h2>", text::coins(kind.coins_per_request));
        let measured = match kind.basis {
            Basis::Clock => "measured",
            Basis::Cpu => "measured, by processor time",
        };
        let entries =
            [LAW, LOW, HIGH, (measured, MEASURED.1)].map(|(name, colour)| (name.to_owned(), colour));
        legend(&mut out, &entries);
        out.extend(plot(kind).svg(short));
    }
    out.push_str(END);
    out
}

fn plot(kind: &ScaleKind) -> LinePlot {
    let line = |(name, colour): (&str, usize), points| Line { name: name.to_owned(), colour, points };
    let projected = |value: fn(&Projection) -> f64| {
        kind.projections.iter().map(|at| (f64::from(at.cores), value(at))).collect::<Vec<_>>()
    };
    let mut lines = vec![
        line(LAW, projected(|at| at.coins_per_s)),
        line(LOW, projected(|at| at.low_coins_per_s)),
        line(HIGH, projected(|at| at.high_coins_per_s)),
    ];
    lines.extend(kind.runs.iter().map(|run| {
        let point = point(run, kind.basis);
        line(MEASURED, vec![(point.cores, point.coins_per_s)])
    }));
    LinePlot {
        title: format!("Coins per second by cores, {}", text::coins(kind.coins_per_request)),
        x_label: "cores".to_owned(),
        x_ticks: PROJECTED_CORES.map(|cores| (f64::from(cores), cores.to_string())).to_vec(),
        lines,
    }
}
