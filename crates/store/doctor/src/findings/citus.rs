//! Rules for a Citus cluster: what commits over several nodes need.

use super::{Finding, Severity, set};
use crate::facts::Facts;
use crate::facts::citus::{Citus, Node};

/// The longest good time between two recoveries of prepared transactions, in seconds.
const RECOVERY_MAX: f64 = 5.0;

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    // A cluster that holds no schema of ours is somebody else's.
    let Some(citus) = facts.citus.as_ref().filter(|_| !facts.batzen.is_empty()) else { return };
    let before = found.len();
    recovery(facts, found);
    nodes(citus, found);
    if found.len() == before {
        let measured = format!("version {}, {} nodes with their metadata", citus.version, citus.nodes.len());
        found.push(Finding::ok(
            "citus",
            "The Citus cluster is ready for commits over several nodes",
            measured,
        ));
    }
}

fn recovery(facts: &Facts, found: &mut Vec<Finding>) {
    const NAME: &str = "citus.recover_2pc_interval";
    let Some(seconds) = facts.settings.seconds(NAME) else { return };
    let (severity, title) = if seconds < 0.0 {
        (Severity::Critical, "Citus never ends transactions that a lost node has prepared")
    } else if seconds > RECOVERY_MAX {
        (Severity::Warning, "Citus ends transactions that a lost node has prepared only after a long time")
    } else {
        return;
    };
    let text = facts.settings.text(NAME).unwrap_or_default();
    let finding = Finding::new("citus_recovery", severity, title, format!("{NAME} = {text} ms"));
    found.push(
        finding
            .because(
                "Until then, rows that were acknowledged cannot be read, and commits that touch them wait.",
            )
            .type_this(set(facts, NAME, "1s")),
    );
}

fn nodes(citus: &Citus, found: &mut Vec<Finding>) {
    let names = |is_bad: &dyn Fn(&Node) -> bool| {
        let bad: Vec<&str> =
            citus.nodes.iter().filter(|node| is_bad(node)).map(|node| node.name.as_str()).collect();
        (!bad.is_empty()).then(|| bad.join(", "))
    };
    if let Some(names) = names(&|node| !node.answers) {
        let finding = Finding::new(
            "citus_away",
            Severity::Critical,
            "A node of the Citus cluster does not answer",
            names,
        );
        found.push(
            finding
                .because("Commits and reads of its shards wait, and are then answered with 503.")
                .type_this("SELECT * FROM citus_check_cluster_node_health();   -- then start the node"),
        );
    }
    if let Some(names) = names(&|node| !node.is_synced) {
        let title = "A node of the Citus cluster lacks the metadata of tables";
        let finding = Finding::new("citus_metadata", Severity::Warning, title, names);
        found.push(
            finding
                .because("It cannot take the coordinator's part for its own shards.")
                .type_this("SELECT start_metadata_sync_to_all_nodes();"),
        );
    }
    if let Some(names) = names(&|node| node.prepared_max == Some(0)) {
        let title = "A node of the Citus cluster cannot prepare transactions";
        let finding = Finding::new("citus_prepared", Severity::Critical, title, names);
        found.push(finding.because("Every commit over several nodes fails.").type_this(
            "ALTER SYSTEM SET max_prepared_transactions = 200;   -- on that node; then restart it",
        ));
    }
    if let Some(names) = names(&|node| ["off", "local"].contains(&node.synchronous_commit.as_str())) {
        let title = "A node of the Citus cluster loses in a crash what was answered";
        let finding = Finding::new("citus_synchronous_commit", Severity::Critical, title, names);
        found.push(
            finding
                .because(
                    "Settings of a session do not reach the nodes: synchronous_commit is each node's own.",
                )
                .type_this(
                    "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf();   -- on that node",
                ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Setting;
    use crate::facts::batzen::Service;

    fn found(interval: &str, node: Node) -> Vec<(String, Severity)> {
        let mut facts = Facts { batzen: vec![Service::default()], ..Facts::default() };
        facts.citus = Some(Citus { version: "13.2-1".into(), nodes: vec![node] });
        let setting = Setting { setting: interval.into(), unit: Some("ms".into()), ..Setting::default() };
        facts.settings.0.insert("citus.recover_2pc_interval".into(), setting);
        let mut found = Vec::new();
        find(&facts, &mut found);
        found.into_iter().map(|finding| (finding.rule, finding.severity)).collect()
    }

    #[test]
    fn what_commits_over_several_nodes_need_is_reported() {
        let good = || Node {
            name: "h:1".into(),
            is_synced: true,
            answers: true,
            prepared_max: Some(200),
            synchronous_commit: "on".into(),
        };
        let one = |rule: &str, severity| vec![(rule.to_owned(), severity)];
        assert_eq!(found("1000", good()), one("citus", Severity::Ok));
        assert_eq!(found("60000", good()), one("citus_recovery", Severity::Warning));
        assert_eq!(found("-1", good()), one("citus_recovery", Severity::Critical));
        let unsynced = Node { is_synced: false, ..good() };
        assert_eq!(found("1000", unsynced), one("citus_metadata", Severity::Warning));
        let unable = Node { prepared_max: Some(0), ..good() };
        assert_eq!(found("1000", unable), one("citus_prepared", Severity::Critical));
        let lossy = Node { synchronous_commit: "off".into(), ..good() };
        assert_eq!(found("1000", lossy), one("citus_synchronous_commit", Severity::Critical));
        let away = Node { answers: false, prepared_max: None, synchronous_commit: String::new(), ..good() };
        assert_eq!(found("1000", away), one("citus_away", Severity::Critical));
    }
}
