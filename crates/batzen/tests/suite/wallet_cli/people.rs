//! Payments between people, with real wallets, a real exchange and a real bank.

use std::process::Stdio;
use std::time::Instant;

use super::*;

/// The link in the result of `send` or `request`.
fn link(result: &Value) -> &str {
    result["uri"].as_str().unwrap_or_else(|| panic!("no link: {result:#}"))
}

fn id_of(result: &Value) -> String {
    result["transaction"]["id"].to_string()
}

/// Runs a wallet until nothing is pending.
fn settle(world: &World, name: &str) {
    let (code, report) = world.run(name, &["run", "--timeout", "60"]);
    assert_eq!(code, 0, "{name}: {report:#}");
}

fn status(world: &World, name: &str, id: &str) -> String {
    let rows = world.ok(name, &["transactions", id]);
    rows["transactions"][0]["status"].as_str().unwrap().to_owned()
}

/// The coins of all wallets are exactly those that the exchange has outstanding, and no purse is open.
fn check_totals(mut world: World, names: &[&str]) {
    let held: i128 = names
        .iter()
        .map(|name| {
            let balances = world.ok(name, &["balance"]);
            assert_eq!(holdings(&balances), check_history(&world, name), "{name}");
            holdings(&balances)
        })
        .sum();
    let totals = world.totals();
    assert_eq!(units(totals["outstanding"].as_str().unwrap()), held, "{totals:#}");
    assert_eq!((&totals["purses"], &totals["unrevealed_melts"]), (&"0".into(), &"0".into()), "{totals:#}");
    assert_eq!(totals["conserved"], true);
}

#[test]
fn people_pay_each_other() {
    let world = World::start();
    let mut shapes = serde_json::Map::new();
    let mut note = |name: &str, value: &Value| {
        shapes.insert(name.to_owned(), shape(value));
    };
    world.ok("alice.db", &world.withdraw_args("KUDOS:20", "rsa"));

    // Sent and accepted.
    let sent = world.ok("alice.db", &["send", "KUDOS:3.33", "--summary", "lunch", "--yes"]);
    note("send", &sent);
    assert!(link(&sent).starts_with("taler+http://pay-push/localhost:"), "{sent:#}");
    let balance = world.ok("alice.db", &["balance"]);
    assert!(units(balance["balances"][0]["pending_outgoing"].as_str().unwrap()) >= 333_000_000, "{balance}");
    let shown = world.ok("alice.db", &["transactions", &id_of(&sent)]);
    assert_eq!(shown["transactions"][0]["uri"], sent["uri"], "the link is shown again");
    let accepted = world.ok("bob.db", &["accept", link(&sent), "--yes"]);
    note("accept, money", &accepted);
    assert_eq!(accepted["transaction"]["status"], "done");
    assert_eq!(accepted["receipt"]["purse_pub"], sent["receipt"]["purse_pub"]);
    assert!(accepted["receipt"]["merge"]["exchange_sig"].is_string(), "{accepted:#}");
    settle(&world, "alice.db");
    assert_eq!(status(&world, "alice.db", &id_of(&sent)), "done");
    let again = world.ok("bob.db", &["accept", link(&sent), "--yes"]);
    assert_eq!(again["transaction"]["id"], accepted["transaction"]["id"], "nothing is accepted twice");
    let (code, error) = world.run("carol.db", &["accept", link(&sent), "--yes"]);
    assert_eq!(code, 1, "{error}");
    assert!(error["error"].as_str().unwrap().contains("somebody has accepted this payment"), "{error}");

    // Requested and paid. The requester's wallet waits for it.
    let asked = world.ok("bob.db", &["request", "KUDOS:2.5", "--summary", "rent", "--yes"]);
    note("request", &asked);
    assert!(link(&asked).starts_with("taler+http://pay-pull/localhost:"), "{asked:#}");
    let pending = text(&world, "bob.db", &["pending"]);
    assert!(pending.contains("waiting for somebody to pay it; it expires 20"), "{pending}");
    let mut waiting =
        world.wallet("bob.db", &["run", "--timeout", "60"]).stdout(Stdio::null()).spawn().unwrap();
    let paid = world.ok("alice.db", &["accept", link(&asked), "--yes"]);
    note("accept, request", &paid);
    assert_eq!(paid["transaction"]["status"], "done");
    let woken = Instant::now();
    assert!(waiting.wait().unwrap().success());
    assert!(woken.elapsed() < Duration::from_secs(20), "the exchange wakes the long poll");
    assert_eq!(status(&world, "bob.db", &id_of(&asked)), "done");

    // Declined, taken back, and expired.
    let offer = world.ok("alice.db", &["send", "KUDOS:1.11", "--yes"]);
    note("decline", &world.ok("bob.db", &["decline", link(&offer)]));
    note("cancel", &world.ok("alice.db", &["cancel", &id_of(&offer)]));
    settle(&world, "alice.db");
    assert_eq!(status(&world, "alice.db", &id_of(&offer)), "failed");
    let (code, error) = world.run("bob.db", &["accept", link(&offer), "--yes"]);
    assert_eq!(code, 1, "{error}");
    assert!(error["error"].as_str().unwrap().contains("taken back"), "{error}");
    let asked = world.ok("bob.db", &["request", "KUDOS:1", "--yes"]);
    world.ok("bob.db", &["cancel", &id_of(&asked)]);
    settle(&world, "bob.db");
    let short = world.ok("alice.db", &["send", "KUDOS:4.44", "--expires", "8 s", "--yes"]);
    let before = units(world.ok("alice.db", &["balance"])["balances"][0]["total"].as_str().unwrap());
    settle(&world, "alice.db");
    let rows = world.ok("alice.db", &["transactions", &id_of(&short)]);
    let row = &rows["transactions"][0];
    assert_eq!((&row["status"], &row["effect"]), (&"failed".into(), &"+KUDOS:0".into()), "{row:#}");
    assert!(row["message"].as_str().unwrap().contains("the money is back"), "{row:#}");
    let after = units(world.ok("alice.db", &["balance"])["balances"][0]["total"].as_str().unwrap());
    assert!(after - before > 440_000_000, "the money is back");

    let (code, error) = world.run("alice.db", &["send", "KUDOS:1000", "--yes"]);
    assert_eq!(code, 4, "{error}");
    let (code, error) = world.run("alice.db", &["accept", "taler://pay-push/exchange.example/KEY", "--yes"]);
    assert_eq!(code, 2, "{error}");
    let (code, error) = world.run("alice.db", &["send", "KUDOS:1"]);
    assert_eq!(code, 1, "nobody agreed: {error}");
    let words = text(&world, "alice.db", &["transactions"]);
    assert!(words.contains("Sent for \"lunch\": KUDOS:3.33 plus"), "{words}");
    assert!(words.contains("Request paid for \"rent\": KUDOS:2.5 plus"), "{words}");
    let words = text(&world, "bob.db", &["transactions"]);
    assert!(words.contains("Received for \"lunch\": KUDOS:3.33"), "{words}");
    assert!(words.contains("Request paid to you for \"rent\": KUDOS:2.5"), "{words}");
    check_snapshot("wallet-people-json.json", &format!("{:#}\n", Value::Object(shapes)));
    check_totals(world, &["alice.db", "bob.db"]);
}

/// `kill -9` at any moment of sending, accepting, requesting and paying loses nothing.
#[test]
fn killed_while_paying_each_other() {
    let world = World::start();
    world.ok("alice.db", &world.withdraw_args("KUDOS:30", "rsa"));
    world.ok("bob.db", &world.withdraw_args("KUDOS:10", "cs"));
    let kill = |name: &str, args: &[&str], round: u64| {
        kill_after(world.wallet(name, args), Duration::from_millis(3 + round * 9));
    };
    // A killed `send` or `request` either left nothing, or an operation that the next run completes.
    let newest = |name: &str, kind: &str| {
        let rows = world.ok(name, &["transactions"]);
        let rows = rows["transactions"].as_array().unwrap();
        let is_open = |row: &&Value| row["type"] == kind && row["status"] == "pending";
        rows.iter().find(is_open).map(|row| row["uri"].as_str().unwrap().to_owned())
    };
    for round in 0..12u64 {
        let (from, to) = if round % 2 == 0 { ("alice.db", "bob.db") } else { ("bob.db", "alice.db") };
        let (maker, kind, taker) = if round % 4 < 2 { (from, "send", to) } else { (to, "request", from) };
        kill(maker, &[kind, "KUDOS:1.07", "--yes"], round);
        world.run(maker, &["run", "--once"]);
        if let Some(uri) = newest(maker, kind) {
            kill(taker, &["accept", &uri, "--yes"], round);
            world.run(taker, &["run", "--once"]);
            // If it was killed before anything began, it is done now.
            let (code, result) = world.run(taker, &["accept", &uri, "--yes"]);
            assert!(code == 0 || result["error"].as_str().unwrap().contains("already"), "{code} {result:#}");
        }
        settle(&world, taker);
        settle(&world, maker);
    }
    check_totals(world, &["alice.db", "bob.db"]);
}

#[test]
fn pocket_money_buys_only_what_is_allowed() {
    let world = World::start_with(&["--ages"]);
    let mut withdraw = world.withdraw_args("KUDOS:8", "rsa");
    withdraw.extend(["--age-limit", "14"]);
    world.ok("child.db", &withdraw);
    let coins = world.ok("child.db", &["coins"]);
    let limits = |coins: &Value| -> Vec<Value> {
        coins["coins"].as_array().unwrap().iter().map(|coin| coin["age_limit"].clone()).collect()
    };
    assert!(limits(&coins).iter().all(|limit| *limit == 14), "{coins:#}");
    let exchange = ["--exchange", &world.exchange_url, "--yes"];
    let ask = |age: &str| {
        let args = [&["request", "KUDOS:1.23", "--min-age", age][..], &exchange].concat();
        world.ok("shop.db", &args)
    };
    let film = ask("16");
    let (code, refused) = world.run("child.db", &["accept", link(&film), "--yes"]);
    assert_eq!(code, 4, "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("for people of 16 or more"), "{refused}");
    let book = ask("14");
    let paid = world.ok("child.db", &["accept", link(&book), "--yes"]);
    assert_eq!(paid["transaction"]["status"], "done", "{paid:#}");
    world.ok("shop.db", &["cancel", &id_of(&film)]);
    settle(&world, "shop.db");
    settle(&world, "child.db");
    let coins = world.ok("child.db", &["coins"]);
    assert!(limits(&coins).iter().all(|limit| *limit == 14), "change keeps the limit: {coins:#}");
    assert!(limits(&world.ok("shop.db", &["coins"])).iter().all(Value::is_null));
    // Without limit, the same wallet can pay.
    let mut withdraw = world.withdraw_args("KUDOS:3", "cs");
    withdraw.extend(["--wait", "60"]);
    world.ok("child.db", &withdraw);
    let film = ask("18");
    world.ok("child.db", &["accept", link(&film), "--yes"]);
    settle(&world, "shop.db");
    settle(&world, "child.db");
    check_totals(world, &["child.db", "shop.db"]);
}
