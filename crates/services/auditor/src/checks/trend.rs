//! Figures over time as drawings (SVG), without a script.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::audit::report::Context;
use crate::audit::{DenomResult, Net, Outcome};
use batzen_protocol::Timestamp;
use batzen_tables::exchange::DenomSerial;

use crate::live::Hour;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 240.0;
/// Room for words below and above the lines.
const MARGIN: f64 = 22.0;

/// A line of a drawing: its class, its name, its points.
struct Line {
    class: &'static str,
    name: &'static str,
    points: Vec<(Timestamp, i128)>,
}

#[allow(clippy::cast_precision_loss, reason = "a place in a drawing")]
fn drawing(out: &mut String, what: &str, lines: &[Line], context: &Context) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (Some(from), Some(to)) =
        (points().map(|(time, _)| *time).min(), points().map(|(time, _)| *time).max())
    else {
        return;
    };
    let most = points().map(|(_, units)| *units).max().unwrap_or_default().max(1);
    let least = points().map(|(_, units)| *units).min().unwrap_or_default().min(0);
    let span = (to.as_micros() - from.as_micros()).max(1) as f64;
    let place = |(time, units): &(Timestamp, i128)| {
        let x = (time.as_micros() - from.as_micros()) as f64 / span * WIDTH;
        let y = HEIGHT - (units - least) as f64 / (most - least) as f64 * HEIGHT;
        format!("{x:.1},{:.1}", y + MARGIN)
    };
    let net = |units| Net { units, currency: Some(context.currency) };
    let total = HEIGHT + 2.0 * MARGIN;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {total}\" role=\"img\" aria-label=\"{what}\"><text x=\"0\" y=\"14\">{}</text>",
        net(most)
    );
    for line in lines {
        let mut places: Vec<String> = line.points.iter().map(place).collect();
        if let [only] = places.as_slice() {
            // One point is no line.
            let (_, y) = only.split_once(',').unwrap_or_default();
            places.push(format!("{WIDTH},{y}"));
        }
        let _ = write!(
            out,
            "<polyline class=\"{}\" points=\"{}\"><title>{}</title></polyline>",
            line.class,
            places.join(" "),
            line.name
        );
    }
    let _ = write!(
        out,
        "<text x=\"0\" y=\"{y}\">{from}</text><text x=\"{WIDTH}\" y=\"{y}\" text-anchor=\"end\">{to}</text></svg><p>",
        y = total - 4.0
    );
    for line in lines {
        let last = line.points.last().map_or(0, |(_, units)| *units);
        let _ = write!(
            out,
            "<span class=\"key\"><svg viewBox=\"0 0 20 8\" style=\"width:20px;height:8px\" aria-hidden=\"true\"><polyline class=\"{}\" \
             points=\"0,4 20,4\"/></svg> {} {}</span>",
            line.class,
            line.name,
            net(last)
        );
    }
    out.push_str("</p>");
}

/// The money at the bank against what is owed, and all coins.
pub(super) fn total(out: &mut String, hours: &[Hour], context: &Context) {
    let all: Vec<&Hour> = hours.iter().filter(|hour| hour.denom.is_none()).collect();
    if all.is_empty() {
        return;
    }
    let line = |class, name, figure: &dyn Fn(&Hour) -> Option<i128>| Line {
        class,
        name,
        points: all.iter().filter_map(|hour| figure(hour).map(|units| (hour.hour, units))).collect(),
    };
    out.push_str("<h2>Money at the bank and what is owed</h2><div id=\"coverage\">");
    let mut lines = vec![
        line("bank", "At the bank", &|hour| hour.bank),
        line("expected", "Should be there", &|hour| Some(hour.expected)),
        line("owed", "Owed", &|hour| Some(hour.liability)),
    ];
    // Without the bank there is one line less.
    lines.retain(|line| !line.points.is_empty());
    drawing(out, "Money at the bank and what is owed", &lines, context);
    out.push_str("</div><h2>Coins over time</h2><div id=\"trend\">");
    drawing(
        out,
        "Coins over time",
        &[
            line("issued", "Issued", &|hour| Some(hour.issued)),
            line("redeemed", "Redeemed", &|hour| Some(hour.redeemed)),
            line("outstanding", "Outstanding", &|hour| Some(hour.issued - hour.redeemed)),
        ],
        context,
    );
    out.push_str("</div>");
}

/// The same for each denomination that has coins.
pub(super) fn denominations(out: &mut String, hours: &[Hour], outcome: &Outcome, context: &Context) {
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
        let line = |class, name, figure: fn(&Hour) -> i128| Line {
            class,
            name,
            points: hours.iter().map(|hour| (hour.hour, figure(hour))).collect(),
        };
        let _ = write!(out, "<div><strong>{}</strong>", denom.denom.row.value.of(context.currency));
        let value = denom.denom.row.value.of(context.currency).to_string();
        drawing(
            out,
            &format!("Coins of {value} over time"),
            &[
                line("issued", "Issued", |hour| hour.issued),
                line("redeemed", "Redeemed", |hour| hour.redeemed),
                line("outstanding", "Outstanding", |hour| hour.issued - hour.redeemed),
            ],
            context,
        );
        out.push_str("</div>");
    }
    out.push_str("</div></details>");
}
