//! Figures over time as plots, without a script.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::audit::report::Context;
use crate::audit::{AuditOutcome, DenomResult, Net};
use batzen_http::plot::{COLOURS, Line, LinePlot};
use batzen_protocol::Timestamp;
use batzen_tables::exchange::DenomSerial;

use crate::live::Hour;

/// The colours of the page.
const ISSUED: usize = 0;
const REDEEMED: usize = 1;
const OUTSTANDING: usize = 2;
const BANK: usize = 2;
const OWED: usize = 3;
/// Dashed.
const EXPECTED: usize = COLOURS + 4;

/// A line of a drawing.
struct Figure {
    colour: usize,
    name: &'static str,
    points: Vec<(Timestamp, i128)>,
}

#[allow(clippy::cast_precision_loss, reason = "a place in a drawing")]
fn drawing(out: &mut String, what: &str, figures: &[Figure], context: &Context) {
    let times = || figures.iter().flat_map(|figure| figure.points.iter().map(|(time, _)| *time));
    let (Some(from), Some(to)) = (times().min(), times().max()) else { return };
    let net = |units| Net { units, currency: Some(context.currency) };
    let line = |figure: &Figure| Line {
        name: figure.name.to_owned(),
        colour: figure.colour,
        points: figure.points.iter().map(|(time, units)| (time.as_micros() as f64, *units as f64)).collect(),
    };
    let plot = LinePlot {
        title: what.to_owned(),
        x_label: format!("{from} to {to}"),
        x_ticks: Vec::new(),
        lines: figures.iter().map(line).collect(),
    };
    #[allow(clippy::cast_possible_truncation, reason = "a sum of money was there before")]
    out.extend(plot.svg(|units| net(units as i128).to_string()));
    out.push_str("<p>");
    for Figure { colour, name, points } in figures {
        let (colour, last) = (colour % COLOURS, points.last().map_or(0, |(_, units)| *units));
        let _ = write!(out, "<span class=\"key\"><i class=\"c{colour}\"></i>{name} {}</span>", net(last));
    }
    out.push_str("</p>");
}

/// The money at the bank against what is owed, and all coins.
pub(super) fn total(out: &mut String, hours: &[Hour], context: &Context) {
    let all: Vec<&Hour> = hours.iter().filter(|hour| hour.denom.is_none()).collect();
    if all.is_empty() {
        return;
    }
    let line = |colour, name, figure: &dyn Fn(&Hour) -> Option<i128>| Figure {
        colour,
        name,
        points: all.iter().filter_map(|hour| figure(hour).map(|units| (hour.hour, units))).collect(),
    };
    out.push_str("<h2>Money at the bank and what is owed</h2><div id=\"coverage\">");
    let mut lines = vec![
        line(BANK, "At the bank", &|hour| hour.bank),
        line(EXPECTED, "Should be there", &|hour| Some(hour.expected)),
        line(OWED, "Owed", &|hour| Some(hour.liability)),
    ];
    // Without the bank there is one line less.
    lines.retain(|line| !line.points.is_empty());
    drawing(out, "Money at the bank and what is owed", &lines, context);
    out.push_str("</div><h2>Coins over time</h2><div id=\"trend\">");
    drawing(
        out,
        "Coins over time",
        &[
            line(ISSUED, "Issued", &|hour| Some(hour.issued)),
            line(REDEEMED, "Redeemed", &|hour| Some(hour.redeemed)),
            line(OUTSTANDING, "Outstanding", &|hour| Some(hour.issued - hour.redeemed)),
        ],
        context,
    );
    out.push_str("</div>");
}

/// The same for each denomination that has coins.
pub(super) fn denominations(out: &mut String, hours: &[Hour], outcome: &AuditOutcome, context: &Context) {
    let mut of_denoms: BTreeMap<DenomSerial, Vec<&Hour>> = BTreeMap::new();
    for hour in hours {
        if let Some(denom) = hour.denom {
            of_denoms.entry(denom).or_default().push(hour);
        }
    }
    let mut shown: Vec<(&DenomResult, &Vec<&Hour>)> = outcome
        .denoms
        .iter()
        .filter_map(|denom| of_denoms.get(&denom.serial).map(|hours| (denom, hours)))
        .filter(|(denom, _)| denom.tally.issued() > 0)
        .collect();
    if shown.is_empty() {
        return;
    }
    shown.sort_by_key(|(denom, _)| (std::cmp::Reverse(denom.denom.row.value), denom.denom.row.start));
    out.push_str("<details id=\"denominations-over-time\"><summary>Denominations over time</summary><div class=\"few\">");
    for (denom, hours) in shown {
        let line = |colour, name, figure: fn(&Hour) -> i128| Figure {
            colour,
            name,
            points: hours.iter().map(|hour| (hour.hour, figure(hour))).collect(),
        };
        let _ = write!(out, "<div><strong>{}</strong>", denom.denom.row.value.of(context.currency));
        let value = denom.denom.row.value.of(context.currency).to_string();
        drawing(
            out,
            &format!("Coins of {value} over time"),
            &[
                line(ISSUED, "Issued", |hour| hour.issued),
                line(REDEEMED, "Redeemed", |hour| hour.redeemed),
                line(OUTSTANDING, "Outstanding", |hour| hour.issued - hour.redeemed),
            ],
            context,
        );
        out.push_str("</div>");
    }
    out.push_str("</div></details>");
}
