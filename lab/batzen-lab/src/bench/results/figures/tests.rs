//! Tests of figures, and of the project's documents.

use super::others::{OTHERS, Other};
use super::*;
use crate::bench::results::result::tests::sample_run;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn of_project() -> Kept {
    Kept::read(&root().join("docs/results")).unwrap()
}

#[test]
fn every_figure_of_the_documents_has_a_source() {
    let root = root();
    let documents = documents(&root).unwrap();
    assert!(documents.len() > 35, "{documents:?}");
    let found = check(&root, &documents, &of_project()).unwrap();
    assert!(
        found.is_empty(),
        "{}\n`batzen-lab bench figures` renews figures; docs/internals/measuring.md says how to write one",
        found.join("\n")
    );
    for other in &OTHERS {
        assert!(documents.contains(&root.join(other.document)), "{}", other.document);
        assert!(!other.reason.is_empty());
    }
    assert!(OTHERS.len() <= 20, "the list stays short");
    let field = of_project().file("field").unwrap();
    for (name, figures) in field.as_object().unwrap().iter().filter(|(name, _)| *name != "about") {
        assert!(figures["source"].as_str().is_some_and(|source| source.len() > 10), "{name} has no source");
    }
}

/// One model answers how much a load needs, whichever page or command is asked.
#[test]
fn plan_cost_and_scaling_out_agree() {
    let kept = of_project();
    let figure = |formula: &str| kept.figure(formula, &Used::default()).unwrap();
    let cores = "plan(payments-per-second=100000).cores_in_all";
    for page in ["docs/planning.md", "docs/cost.md", "docs/scaling-out.md", "docs/comparison.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        assert!(text.contains(cores), "{page} answers from another model");
    }
    // What a million payments cost is what the cores do in that time.
    let value = |formula: &str| figure(formula).replace(',', "").parse::<f64>().unwrap();
    let us = value("plan(payments-per-second=100000).us_per_payment");
    assert!((value(cores) / (us * 0.1 / 0.7) - 1.0).abs() < 0.01, "{us}");
    assert_eq!(
        figure("plan(payments-per-second=1000).us_per_payment"),
        figure("plan(payments-per-second=100000).us_per_payment")
    );
    // The command says the same.
    let args = formula::plan("plan(payments-per-second=100000)").unwrap().unwrap();
    let plan = crate::bench::plan::compute(&args).unwrap();
    assert_eq!(figure(cores), batzen_cli_support::numbers::number(plan.cores_in_all));
}

/// Results of two versions, and a page that shows them.
fn kept(directory: &Path, version: &str) -> Kept {
    for (name, ops_per_s) in [("withdraw", 9_000.4), ("deposit", 20_000.0)] {
        let mut run = sample_run(&directory.join(name));
        run.result.ops_per_s = ops_per_s;
        run.result.version = if name == "withdraw" { version } else { env!("CARGO_PKG_VERSION") }.to_owned();
        run.result.commit = format!("of-{name}");
        run.result.extra.insert("coins".into(), 4.0);
        run.write().unwrap();
    }
    std::fs::create_dir(directory.join("field")).unwrap();
    std::fs::write(directory.join("field/field.json"), r#"{"other": {"coins_per_s": 1234567}}"#).unwrap();
    Kept::read(directory).unwrap()
}

const PAGE: &str = "<!-- bench: age -->\n<!-- bench: end -->\n\n";

#[test]
fn figures_in_text_are_those_of_the_results() {
    let directory = tempfile::tempdir().unwrap();
    let kept = kept(directory.path(), "0.0.1");
    let renewed = |text: &str| kept.renew(&format!("{PAGE}{text}\n"));
    for (text, expected) in [
        ("**1<!-- = withdraw.ops_per_s --> coins** a second", "**9,000<!--"),
        ("<!-- = withdraw.ops_per_s / 3 + 0.5 --> a second", "\n3,001<!--"),
        ("from 3 to −1.5<!-- = withdraw.ops_per_s - 9010 -->", "from 3 to −9.60<!--"),
        ("| 1<!-- = field.other.coins_per_s --> |", "| 1,234,567<!--"),
        ("<!-- = deposit.ops_per_s * 2 -->", "\n40,000<!--"),
        ("x<!-- = deposit.extra.coins -->", "x4<!--"),
        ("<!-- = withdraw.cpu_us_per_op_by_stage -->", "\n108<!--"),
    ] {
        let renewed = renewed(text).unwrap();
        assert!(renewed.contains(expected), "{text}: {renewed}");
        assert_eq!(kept.renew(&renewed).unwrap(), renewed, "renewing twice changes nothing");
    }
    for (text, expected) in [
        ("1<!-- = absent.ops_per_s -->", "there is no result \"absent\""),
        ("1<!-- = withdraw.absent -->", "withdraw has no figure absent"),
        ("1<!-- = withdraw.title -->", "is no number"),
        ("1<!-- = withdraw -->", "names no figure"),
        ("1<!-- = withdraw.ops_per_s / 0 -->", "it has no value"),
        ("5<!-- = 5 -->", "it begins with a number"),
        ("1<!-- = withdraw.ops_per_s ^ 2 -->", "is no operator"),
        ("1<!-- = plan(coins=3).cores_in_all -->", "--payments-per-second"),
        ("<!-- bench: nothing -->\n<!-- bench: end -->", "no table \"nothing\""),
    ] {
        let error = renewed(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn pages_say_how_old_their_figures_are() {
    let directory = tempfile::tempdir().unwrap();
    let kept = kept(directory.path(), "0.0.1");
    let figure = "1<!-- = withdraw.ops_per_s --> a second\n";
    let error = kept.renew(figure).unwrap_err();
    assert!(error.contains("it must show their age"), "{error}");
    assert_eq!(kept.renew("No figures.\n").unwrap(), "No figures.\n");
    let renewed = kept.renew(&format!("{PAGE}{figure}")).unwrap();
    let current = env!("CARGO_PKG_VERSION");
    let old = format!(
        "Throughputs and costs on this page are of Batzen 0.0.1 (commit of-withdraw), measured on 2025-11-21, **older than this version, {current}**."
    );
    assert!(renewed.contains(&old), "{renewed}");
    let renewed = kept.renew(&format!("{PAGE}{figure}1<!-- = deposit.ops_per_s -->\n")).unwrap();
    assert!(
        renewed.contains("Those of ") && renewed.contains(&format!("Batzen {current} (commit of-deposit)")),
        "{renewed}"
    );
    // Tables count, too.
    let table = "<!-- bench: requests -->\n<!-- bench: end -->\n";
    assert!(kept.renew(table).unwrap_err().contains("it must show their age"));
    let renewed = kept.renew(&format!("{PAGE}{table}")).unwrap();
    assert!(renewed.contains("of-deposit") && renewed.contains("of-withdraw"), "{renewed}");
    assert!(
        kept.renew(&format!("{PAGE}1<!-- = field.other.coins_per_s -->\n"))
            .unwrap()
            .contains("of other systems")
    );
}

#[test]
fn a_check_finds_what_is_not_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let kept = kept(&directory.path().join("results"), "0.0.1");
    let page = directory.path().join("page.md");
    let check = |text: &str| {
        std::fs::write(&page, text).unwrap();
        check(directory.path(), std::slice::from_ref(&page), &kept).unwrap()
    };
    let text = kept.renew(&format!("{PAGE}1<!-- = withdraw.ops_per_s --> coins a second\n")).unwrap();
    assert!(check(&text).is_empty());
    let found = check(&text.replace("9,000", "9,100"));
    assert!(found.len() == 1 && found[0].starts_with("page.md:7: not as its result says"), "{found:?}");
    let found = check(&text.replace("**older", "**newer"));
    assert!(found.len() == 1 && found[0].contains("not as its result says"), "{found:?}");
    let found = check(&(text + "\nIt makes 5 coins a second.\n"));
    assert!(found.len() == 1 && found[0].starts_with("page.md:9: 5 coins a second: neither"), "{found:?}");
}

fn scan(text: &str) -> Vec<String> {
    scan::scan("page.md", text, &[]).collect()
}

#[test]
fn throughputs_and_costs_are_found() {
    for text in [
        "It makes 5,363 coins withdrawn and deposited a second.",
        "It makes **996,963 ledger\ntransfers** a second.",
        "It makes 5,363 coins\n  per second.",
        "* It makes 1,000/s.",
        "some 13,525 deposits/s",
        "1.3 M transfers per second",
        "33k TPS",
        "1,900 FTPS",
        "a few hundred thousand coins a second",
        "two million transfers/s",
        "a transfer costs 1.29 µs",
        "a transfer costs 1.29µs of time",
        "[14 to 15 µs](page.md)",
        "it takes 4–6 µs",
        "from 4 to 1<!-- = a.b --> µs",
        "5.8 ms of CPU for a coin",
        "7.2 s of the processor",
        "3.2 bytes per transfer",
        "24 B per row",
        "100 bytes for each row",
        "64 cores like the measured one",
        "needs 0.18 core-hours",
        "31 times the rate of another",
        "11 % slower than before",
        "reaches 0.64 of the embedded store's rate",
        "0.09 to 0.54 of one server's speed",
        "| load | a second |\n|---|---|\n| all | 5 |",
        "| load | CPU a transfer |\n|---|---|\n| all | 5 |",
        "    processor   3,000,000 × 214 µs",
        "```\n0 coins/s\n```",
        "<!-- bench: limits -->\n<!-- bench: end -->\n5 coins a second",
        "<td>5 coins/s</td>",
        "<!-- a comment --> 5 coins a second",
    ] {
        assert!(!scan(text).is_empty(), "{text}");
    }
}

#[test]
fn other_numbers_are_not_found() {
    for text in [
        "Wait for 5 seconds. Then try a second time.",
        "Within 200 ms. After a second it asks again.",
        "For 60 s, one of 3 processes.",
        "5<!-- = a.b --> coins a second",
        "4<!-- = a.b --> to 6<!-- = a.b --> µs",
        "<!-- bench: limits -->\n5 coins a second\n<!-- bench: end -->",
        "<!-- 5 coins\na second -->",
        "```sh\nbatzen-lab bench deposit # 5 coins a second\n```",
        "a machine with 2 cores, RSA-2048, 2026-11-26, [link](5/s)",
        "of 0.44 of it, with 64 MiB a document",
        "| load | a second |\n|---|---|\n| 5 | 5<!-- = a.b --> |",
        "No rate at all a second",
    ] {
        assert_eq!(scan(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn others_are_listed_by_their_words() {
    let others = [Other { document: "page.md", text: "5 coins a second", reason: "a goal" }];
    let scan = |name: &str, text: &str| scan::scan(name, text, &others).collect::<Vec<_>>();
    assert!(scan("page.md", "The goal is 5 coins\na second.").is_empty());
    assert_eq!(scan("page.md", "The goal is 5 coins a second, and 6 a second.").len(), 1);
    assert_eq!(scan("other.md", "The goal is 5 coins a second.").len(), 1);
    assert!(scan("page.md", "Nothing.")[0].contains("(a goal) is in the list of others, and not here"));
}
