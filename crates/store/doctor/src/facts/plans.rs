//! Parses executed plans from `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)`. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A summary of an executed plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    pub seconds: f64,
    pub rows: f64,
    /// Pages found in `shared_buffers`.
    pub hit: u64,
    /// Pages read from the operating system.
    pub read: u64,
    /// Tables (each partition is one) that were read or written.
    pub relations: BTreeSet<String>,
    /// The subset that was scanned sequentially.
    pub whole: BTreeSet<String>,
}

/// Reads the server's answer. `None`: not a plan.
pub(crate) fn read(json: &str) -> Option<Plan> {
    let answer: Value = serde_json::from_str(json).ok()?;
    let answer = answer.get(0)?;
    let top = answer.get("Plan")?;
    let mut plan = Plan {
        seconds: answer.get("Execution Time").and_then(Value::as_f64).unwrap_or(0.0) / 1000.0,
        rows: top.get("Actual Rows").and_then(Value::as_f64).unwrap_or(0.0),
        hit: top.get("Shared Hit Blocks").and_then(Value::as_u64).unwrap_or(0),
        read: top.get("Shared Read Blocks").and_then(Value::as_u64).unwrap_or(0),
        ..Plan::default()
    };
    walk(top, &mut plan);
    Some(plan)
}

fn walk(node: &Value, plan: &mut Plan) {
    let text = |name: &str| node.get(name).and_then(Value::as_str);
    // A partition that was pruned at execution is in the plan, but was never executed.
    let is_executed = node.get("Actual Loops").and_then(Value::as_f64).unwrap_or(0.0) > 0.0;
    let is_scan = text("Node Type").is_some_and(|kind| kind.ends_with("Scan"));
    if let Some(relation) = text("Relation Name").filter(|_| is_executed && is_scan) {
        plan.relations.insert(relation.to_owned());
        if text("Node Type") == Some("Seq Scan") {
            plan.whole.insert(relation.to_owned());
        }
    }
    for child in node.get("Plans").and_then(Value::as_array).into_iter().flatten() {
        walk(child, plan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruned_partitions_do_not_count() {
        let json = r#"[{"Plan": {"Node Type": "Nested Loop", "Actual Rows": 1, "Actual Loops": 1, "Shared Hit Blocks": 4, "Shared Read Blocks": 1,
            "Plans": [
              {"Node Type": "Function Scan", "Actual Loops": 1, "Function Name": "unnest"},
              {"Node Type": "Append", "Actual Loops": 1, "Plans": [
                {"Node Type": "Index Scan", "Relation Name": "coins_p00", "Actual Loops": 0},
                {"Node Type": "Index Scan", "Relation Name": "coins_p01", "Actual Loops": 1},
                {"Node Type": "Seq Scan", "Relation Name": "coins_p02", "Actual Loops": 2}]}]},
            "Execution Time": 0.5}]"#;
        let plan = read(json).unwrap();
        assert_eq!(plan.relations, ["coins_p01", "coins_p02"].map(str::to_owned).into());
        assert_eq!(plan.whole, ["coins_p02".to_owned()].into());
        assert_eq!((plan.hit, plan.read, plan.rows, plan.seconds), (4, 1, 1.0, 0.0005));
    }

    #[test]
    fn invalid_plan_is_none() {
        for text in ["", "[]", "{}", "[{}]", "nonsense"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
