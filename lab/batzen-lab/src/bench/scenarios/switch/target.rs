//! A switch that runs already, with participants of the run's own names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::results::result::RunResult;
use crate::bench::scenarios::target::Server;
use crate::participants::hub::{Hub, HubError, ten_thousandths};
use crate::participants::{FspsConfig, Report};

/// A switch that runs already.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Switch")]
pub(crate) struct TargetSwitch {
    /// Load the switch at this URL, http://HOST:PORT/, instead of one that is started for the run
    #[arg(long, value_name = "URL", requires = "admin", requires = "tokens")]
    pub(crate) target: Option<Server>,
    /// Its URL for operators, who create participants for the run: http://HOST:PORT/
    #[arg(long, value_name = "URL", requires = "target")]
    pub(crate) admin: Option<Server>,
    /// File with the tokens of two of its operators, one a line
    #[arg(long, value_name = "FILE", requires = "target")]
    pub(crate) tokens: Option<PathBuf>,
}

impl TargetSwitch {
    /// The operators of the switch, if it runs already.
    pub(super) fn hub(&self) -> Result<Option<Hub>> {
        let (Some(admin), Some(file)) = (&self.admin, &self.tokens) else { return Ok(None) };
        let tokens = Hub::tokens(file).map_err(BenchError::io(file))?;
        Ok(Some(Hub::new(admin.address, tokens)))
    }
}

/// Names participants so that neither an earlier run nor another generator has them.
pub(super) fn name_afresh(config: &mut FspsConfig) {
    let mut random = [0; 5];
    batzen_crypto::fill_random(&mut random);
    let run: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    config.names = (1..=config.names.len()).map(|number| format!("bench-{run}-{number}")).collect();
}

/// The currency of a switch: that of its first settlement model that has one; none if there is no such model yet.
pub(super) fn currency(books: &Hub) -> std::result::Result<Option<String>, HubError> {
    let models = books.get("/settlementModels")?;
    let of_models = models.as_array().into_iter().flatten().filter_map(|model| model["currency"].as_str());
    Ok(of_models.map(str::to_owned).next())
}

/// Checks the books of the run's own participants, who pay only each other; others may use the switch meanwhile.
pub(super) fn check(
    books: &Hub,
    names: &[String],
    currency: &str,
    report: &Report,
) -> std::result::Result<BTreeMap<String, u64>, HubError> {
    let windows = books.get("/settlementWindows")?;
    let recorded = Recorded::of(&windows, names)
        .ok_or_else(|| HubError::Unexpected("windows without amounts".to_owned()))?;
    let mut owed = 0;
    for name in names {
        owed += books.position(name, currency)?;
    }
    Ok(recorded.problems(owed, report))
}

/// The transfers of some participants that a switch has recorded in its windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Recorded {
    count: u64,
    /// In ten-thousandths of the currency.
    sent: i128,
    /// The amount sent less the amount received.
    net: i128,
}

impl Recorded {
    fn of(windows: &Value, names: &[String]) -> Option<Self> {
        let mut sum = Self::default();
        for line in windows.as_array()?.iter().filter_map(|window| window["content"].as_array()).flatten() {
            if line["participant"].as_str().is_some_and(|name| names.iter().any(|own| own == name)) {
                sum.count += line["sentCount"].as_u64()?;
                sum.sent += ten_thousandths(&line["sent"])?;
                sum.net += ten_thousandths(&line["net"])?;
            }
        }
        Some(sum)
    }

    /// The differences, if the ledger says that all participants together owe so much.
    fn problems(self, owed: i128, report: &Report) -> BTreeMap<String, u64> {
        let told = i128::try_from(report.committed_cents).unwrap_or(i128::MAX).saturating_mul(100);
        let differences = [
            ("committed transfers and callbacks differ", self.count.abs_diff(report.committed_in_all).into()),
            ("amounts of committed transfers and of callbacks differ", self.sent.abs_diff(told)),
            ("what participants paid is not what they got", self.net.unsigned_abs()),
            ("positions in the ledger do not add up to zero", owed.unsigned_abs()),
        ];
        let wrong = differences.into_iter().filter(|(_, difference): &(_, u128)| *difference > 0);
        wrong.map(|(what, by)| (what.to_owned(), u64::try_from(by).unwrap_or(u64::MAX))).collect()
    }
}

/// Leaves out what only the machine of a switch knows of it.
pub(super) fn leave_out_server(result: &mut RunResult, url: &str) {
    (result.bytes_per_op, result.cpu_us_per_op) = (None, None);
    result.cpu_us_per_op_by_stage.clear();
    for of_server in ["cpu_us_per_ft_switch", "bytes_per_ft", "device_bytes_per_ft"] {
        result.extra.remove(of_server);
    }
    for of_own in ["durability", "replicas"] {
        result.parameters.remove(of_own);
    }
    result.parameters.insert("target".to_owned(), url.into());
    result.remarks.push(
        "the switch ran already: figures of its processors and disk are not known here, and no window was closed".to_owned(),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_books_of_own_participants_are_checked_beside_those_of_others() {
        let line = |name: &str, count: u64, sent: &str, net: &str| json!({ "participant": name, "sentCount": count, "sent": sent, "net": net });
        let windows = json!([
            { "content": [line("bench-1", 2, "7", "4.5"), line("bench-2", 1, "2.5", "-4.5"), line("other", 9, "1", "1")] },
            { "content": [line("bench-1", 1, "0.01", "0.01"), line("bench-2", 0, "0", "-0.01")] },
        ]);
        let names = ["bench-1".to_owned(), "bench-2".to_owned()];
        let recorded = Recorded::of(&windows, &names).unwrap();
        assert_eq!(recorded, Recorded { count: 4, sent: 95_100, net: 0 });
        let mut report = Report::new();
        (report.committed_in_all, report.committed_cents) = (4, 951);
        assert!(recorded.problems(0, &report).is_empty());
        (report.committed_in_all, report.committed_cents) = (5, 950);
        assert_eq!(Recorded { net: 3, ..recorded }.problems(-1, &report).len(), 4);
        assert!(Recorded::of(&json!([{ "content": [{ "participant": "bench-1" }] }]), &names).is_none());
    }

    #[test]
    fn names_are_never_used_twice() {
        let mut config = FspsConfig::new(2, ([127, 0, 0, 1], 1).into(), "USD");
        name_afresh(&mut config);
        let before = config.names.clone();
        name_afresh(&mut config);
        assert!(before[1].ends_with("-2") && before.iter().all(|name| !config.names.contains(name)));
        assert!(before.iter().all(|name| name.len() <= 32), "{before:?}");
    }
}
