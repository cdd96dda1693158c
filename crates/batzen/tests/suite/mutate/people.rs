//! People who use the exchange: they pay each other, have reserves, and lose what was revoked.

use std::sync::Arc;

use batzen_crypto::{EddsaPrivateKey, ShortHash};
use batzen_protocol::Duration;
use batzen_protocol::api::exchange::WithdrawRequest;
use batzen_protocol::liabilities::Kind;
use batzen_protocol::signatures::{
    SignedMessage, WalletReserveClose, WalletReserveHistory, WalletReserveOpen,
};
use serde_json::{Value, json};

use crate::common::customer::Customer;
use crate::common::setup::wait_for;
use crate::crash::coins::{CURRENCY, Denom, Shop, money, now};
use crate::mutate::deployment::{Deployment, PAYTO};
use crate::mutate::seeds::Seed;
use crate::mutate::{mutant, routes};

impl Deployment {
    /// Sends money, takes one payment back, and asks for money.
    pub(super) fn pay_each_other(&self, name: &str) {
        let friend = format!("friend-of-{name}");
        let exchange = self.exchange.proxy.url();
        let add = ["exchanges", "add", &exchange, "--yes"];
        self.wallet(&friend, &add);
        let uri = |made: &Value| made["uri"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        let sent = self.wallet(name, &["send", "KUDOS:1.5", "--summary", "lunch", "--yes"]);
        self.wallet(&friend, &["accept", &uri(&sent), "--yes"]);
        let unwanted = self.wallet(name, &["send", "KUDOS:1", "--yes"]);
        self.wallet(name, &["cancel", &unwanted["transaction"]["id"].to_string()]);
        let asked = self
            .wallet(&friend, &["request", "KUDOS:2", "--summary", "rent", "--yes", "--exchange", &exchange]);
        self.wallet(name, &["accept", &uri(&asked), "--yes"]);
        for wallet in [name, &friend] {
            self.wallet(wallet, &["run", "--timeout", "60"]);
        }
    }

    /// Revokes an online key, and the denominations of coins that a wallet has withdrawn and got as change. It gets its
    /// money back.
    pub(super) fn revoke(&self) {
        self.withdraw("revoked", "KUDOS:11", "any");
        self.pay("revoked", "KUDOS:2.5");
        self.wallet("revoked", &["run", "--timeout", "60"]);
        let coins = self.wallet("revoked", &["coins"]);
        let mut hashes = Vec::new();
        texts(&coins, &mut hashes);
        hashes.retain(|text| text.len() == 103);
        hashes.sort_unstable();
        hashes.dedup();
        let steps = hashes.iter().flat_map(|hash| ["revoke-denomination", hash.as_str()]);
        self.offline(&steps.chain(["upload"]).collect::<Vec<_>>());
        let keys = self.exchange.proxy.send(Seed::new("GET", "/keys"));
        let key = keys["signkeys"][0]["key"].as_str().expect("keys name the online key");
        self.offline(&["revoke-signkey", key, "upload"]);
        // Without a signed online key the exchange cannot answer `/keys`, so its new key must exist before it
        // can be signed.
        let future = Seed::new("GET", "/management/keys");
        let count = |keys: &Value, kind: &str| keys[kind].as_array().map_or(0, Vec::len);
        self.exchange.proxy.until(&future, |keys| {
            count(keys, "future_denoms") >= hashes.len() && count(keys, "future_signkeys") > 0
        });
        self.offline(&["download", "sign", "upload"]);
        wait_for(self.exchange.proxy.port, "/keys");
        self.wallet("revoked", &["exchanges", "update", "--yes"]);
        self.wallet("revoked", &["run", "--timeout", "60"]);
    }

    /// Requests about reserves and coins that wallets rarely make.
    pub(super) fn use_reserves(&self) {
        let exchange = &self.exchange.proxy;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let customer = Customer::new(vec![exchange.port], self.bank.proxy.port);
        let key: EddsaPrivateKey = runtime.block_on(async {
            let reserve = customer.reserve("20").await;
            let worthy = |denom: &Arc<Denom>| denom.value > money("0.05");
            for denom in Denom::offered(&customer.client, &exchange.url()).await.into_iter().filter(worthy) {
                customer.withdraw_and_pay(&reserve, &denom, &Shop::new("bakery")).await;
            }
            reserve
        });
        let time = now();
        let at = |action: &str| Seed::new("POST", &format!("/reserves/{}/{action}", key.public_key()));
        let history = WalletReserveHistory { request_timestamp: time, history_fee: money("0").of(CURRENCY) };
        let body = json!({ "request_timestamp": time, "reserve_sig": history.sign(&key) });
        exchange.send(at("history").json(&body));
        let (reserve_expiration, reserve_payment) =
            (time.saturating_add(Duration::from_days(10)), money("0").of(CURRENCY));
        let open = WalletReserveOpen {
            reserve_payment,
            request_timestamp: time,
            reserve_expiration,
            purse_limit: 0,
        };
        exchange.send(at("open").json(&json!({
            "request_timestamp": time, "reserve_expiration": reserve_expiration, "purse_limit": 0,
            "reserve_payment": reserve_payment, "payments": [], "reserve_sig": open.sign(&key),
        })));
        let close = WalletReserveClose { request_timestamp: time, target_h_payto: ShortHash::ZERO };
        let body = json!({ "request_timestamp": time, "reserve_sig": close.sign(&key) });
        exchange.send(at("close").json(&body));
        let melts = exchange.seeds().into_iter().find(|seed| seed.is_valid && seed.path.ends_with("/melt"));
        let coin = melts.expect("change was made").path;
        exchange.send(Seed::new("GET", &coin.replace("/melt", "/link")));
        self.offline(&["drain", "KUDOS:0.01", "exchange-account-1", PAYTO, "upload"]);
        for method in ["GET", "POST"] {
            exchange.ask(Seed::new(method, "/kyc-webhook/kyc-provider-login").json(&json!({})));
        }
        self.read_liabilities();
        exchange.visit(&routes::of(batzen_exchange::api::endpoints()), "", &[]);
    }

    /// Reads what the exchange publishes about its debts.
    fn read_liabilities(&self) {
        let exchange = &self.exchange.proxy;
        let list = Seed::new("GET", "/liabilities");
        let list = exchange.until(&list, |list| !list["epochs"].as_array().is_none_or(Vec::is_empty));
        self.wallet("first", &["verify-exchange", &exchange.url()]);
        let withdrawn = |seed: &Seed| seed.is_valid && seed.path.ends_with("/withdraw");
        let withdrawn = exchange.seeds().into_iter().find(withdrawn).expect("coins were withdrawn");
        let withdrawn: WithdrawRequest = serde_json::from_slice(&mutant::bytes(&withdrawn.body)).unwrap();
        let h_coin_ev = withdrawn.coin_ev.hash(&withdrawn.denom_pub_hash);
        exchange.send(Seed::new("GET", &format!("/liabilities/receipt/{h_coin_ev}")));
        let epoch = format!("/liabilities/{}", list["epochs"][0]["epoch"]);
        let mut denoms = Vec::new();
        texts(&exchange.send(Seed::new("GET", &epoch)), &mut denoms);
        for denom in denoms.iter().filter(|text| text.len() == 103) {
            for kind in Kind::ALL {
                exchange.ask(Seed::new("GET", &format!("{epoch}/{denom}/{}/0", kind.name())));
            }
        }
    }
}

fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => {}
    }
}
