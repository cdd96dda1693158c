//! An exchange with accounts of two wire methods at one bank: `iban` and `x-taler-bank`. Money comes in and goes out
//! by the method of the customer or merchant, with that method's fees.

use std::process::Output;

use serde_json::{Value, json};

use crate::common::drop_in::{DropIn, PAYTO};
use crate::common::setup::wait_for;
use crate::common::site::totals;
use crate::common::{must, run, stderr, stdout, until};

const BANK: &str = "DE50010517";

/// The IBAN of an account number at the bank.
fn iban(number: &str) -> String {
    must(&["bank", "iban", BANK, number]).trim().to_owned()
}

fn payto(iban: &str, owner: &str) -> String {
    format!("payto://iban/{iban}?receiver-name={owner}")
}

/// The rows of a gateway's history: amount and the other side's account, the newest first.
fn rows(history: &str) -> Vec<(String, String)> {
    let columns = |line: &str| {
        let columns: Vec<_> = line.split(' ').collect();
        (columns[2].to_owned(), columns[3].to_owned())
    };
    history.lines().map(columns).collect()
}

fn row(amount: &str, account: &str) -> (String, String) {
    (amount.to_owned(), account.to_owned())
}

struct World {
    set_up: DropIn,
}

impl World {
    fn try_wallet(&self, args: &[&str]) -> Output {
        let file = self.set_up.path("wallet.db");
        run(&[&["wallet", "--wallet", file.to_str().unwrap(), "--json"][..], args].concat())
    }

    fn wallet(&self, args: &[&str]) -> Value {
        let output = self.try_wallet(args);
        // 3: something waits.
        let is_well = matches!(output.status.code(), Some(0 | 3));
        assert!(is_well, "{args:?}: {}{}", stdout(&output), stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn history(&self, account: &str, direction: &str) -> Vec<(String, String)> {
        rows(&self.set_up.must("taler-exchange-wire-gateway-client", &["-s", account, direction]))
    }

    /// Has everything paid out that becomes due within a second.
    fn pay_out(&self) {
        let is_paid = || {
            for worker in ["taler-exchange-aggregator", "taler-exchange-transfer"] {
                self.set_up.must(worker, &["-t"]);
            }
            ["1", "2"].iter().all(|account| !self.history(account, "-o").is_empty())
        };
        until("not everybody is paid", is_paid);
    }
}

fn failed(output: &Output, hint: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", stdout(output));
    assert!(stderr(output).contains(hint), "{}", stderr(output));
}

#[test]
fn money_moves_by_the_method_of_each_account() {
    let (exchange, zoe, shop) = (iban("0000000001"), iban("0648489890"), iban("0000000077"));
    assert_eq!(zoe, "DE12500105170648489890");
    let exchange_payto = payto(&exchange, "Exchange");
    let set_up = DropIn::new(&format!(
        "[bank]\niban_bank = {BANK}\nsignup_bonus = KUDOS:100\n[exchange]\nkey_helpers = NO\n\
         [exchange-account-2]\npayto_uri = {exchange_payto}\nenable_credit = YES\nenable_debit = YES\n"
    ));
    let port = set_up.customer.bank_port;
    let gateway = format!("http://localhost:{port}/taler-wire-gateway/{exchange}/");
    let section = "exchange-accountcredentials-2";
    set_up.must("taler-config", &["-s", section, "-o", "wire_gateway_url", "-V", &gateway]);
    let world = World { set_up };
    let set_up = &world.set_up;
    let bank = set_up.start_bank();
    let register = format!("http://localhost:{port}/taler-bank-access/testing/register");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for name in [exchange.as_str(), "exchange"] {
        let account = json!({ "username": name, "password": "x" });
        let reply = runtime.block_on(set_up.customer.client.post_json(&register, &account)).unwrap();
        assert_eq!(reply.status, 204, "{reply:?}");
    }
    let httpd = set_up.start("taler-exchange-httpd");
    wait_for(set_up.exchange_port(), "/management/keys");
    set_up.offline(&["download", "sign", "upload"]);
    set_up.offline(&["wire-fee", "now", "iban", "KUDOS:0.05", "KUDOS:0.1", "upload"]);
    set_up.offline(&["wire-fee", "now", "x-taler-bank", "KUDOS:0.01", "KUDOS:0", "upload"]);
    set_up.offline(&["global-fee", "now", "KUDOS:0", "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8", "upload"]);
    set_up.offline(&["enable-account", &exchange_payto, "upload"]);
    wait_for(set_up.exchange_port(), "/keys");
    wait_for(set_up.exchange_port(), "/wire");

    // The only account is one with an IBAN. A customer with an IBAN withdraws from hers.
    let (bank_url, exchange_url) =
        (format!("http://localhost:{port}/"), format!("http://localhost:{}/", set_up.exchange_port()));
    let at_bank = ["--bank", &bank_url, "--user", &zoe, "--password", "zoe", "--exchange", &exchange_url];
    let wish = ["withdraw", "--yes", "--amount", "KUDOS:10", "--cipher", "rsa", "--wait", "0"];
    world.wallet(&[&wish[..], &at_bank].concat());
    assert_eq!(world.history("2", "-i"), [row("KUDOS:10", &payto(&zoe, &zoe))]);
    set_up.must("taler-exchange-wirewatch", &["-t"]);
    world.wallet(&["run"]);

    // The wallet knows that only accounts with IBANs are paid as yet. Then both methods are published.
    let by_name = "payto://x-taler-bank/localhost/bakery?receiver-name=bakery";
    let deposit = ["deposit", "KUDOS:1.99", by_name, "--yes"];
    failed(&world.try_wallet(&deposit), "cannot pay to x-taler-bank accounts, but to iban");
    set_up.offline(&["enable-account", PAYTO, "upload"]);
    world.wallet(&["exchanges", "update"]);

    // Shops are paid by the account of their method, less the fee of their method.
    world.wallet(&["deposit", "KUDOS:1.99", &payto(&shop, "Shop"), "--yes"]);
    world.wallet(&deposit);
    world.pay_out();
    assert_eq!(world.history("2", "-o"), [row("KUDOS:1.94", &payto(&shop, &shop))]);
    // The exchange's other account has no money, which this bank lends it.
    assert_eq!(world.history("1", "-o"), [row("KUDOS:1.98", by_name)]);

    let client = |section: &str, from: &str, amount: &str| {
        set_up.must("taler-exchange-wire-gateway-client", &["-s", section, "-D", from, "-a", amount]);
    };
    client("1", by_name, "KUDOS:3");
    client("2", &payto(&zoe, "Zoe"), "KUDOS:3");
    // Across methods: from a name to an IBAN.
    client("2", by_name, "KUDOS:4");
    assert_eq!(world.history("2", "-i")[0], row("KUDOS:4", by_name));
    set_up.must("taler-exchange-wirewatch", &["-t"]);

    // IBANs of another bank, and wrong ones.
    let foreign = "payto://iban/DE75512108001245126199?receiver-name=X";
    let pay = |to: &str| {
        let arguments = ["-s", "2", "-C", to, "-a", "KUDOS:1"];
        set_up.run("taler-exchange-wire-gateway-client", &arguments)
    };
    failed(&pay(foreign), "another bank");
    failed(&pay("payto://iban/DE12500105170648489891?receiver-name=X"), "malformed");
    failed(&run(&["bank", "iban", BANK, "6 7"]), "letters and digits");

    // Reserves that nobody uses are closed to the accounts that filled them, each by its method.
    assert!(httpd.terminate().0.success());
    let later = format!("+{}", 60 * 86_400 * 1_000_000_u64);
    for worker in ["taler-exchange-closer", "taler-exchange-transfer"] {
        set_up.must(worker, &["-t", "-T", &later]);
    }
    let mut closed = world.history("1", "-o")[..2].to_vec();
    closed.sort();
    assert_eq!(closed, [row("KUDOS:3", by_name), row("KUDOS:4", by_name)]);
    assert_eq!(world.history("2", "-o")[0], row("KUDOS:2.9", &payto(&zoe, &zoe)));
    totals(&set_up.config());
    assert!(bank.terminate().0.success());
}
