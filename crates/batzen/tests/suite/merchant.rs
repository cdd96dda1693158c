//! A shop gets paid: bank, exchange and merchant backend as real processes, with real coins of both ciphers. Backends
//! are killed, exchanges go away, coins are offered twice.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::api::merchant::{
    AbortResponse, ClaimResponse, ContractTerms, PayCoin, PayRequest, PayResponse, PickUpRefundResponse,
    RefundResult,
};
use batzen_protocol::canonical::contract_hash;
use batzen_protocol::signatures::{ExchangeConfirmRefund, MerchantPaymentOk, SignedMessage};
use serde_json::{Value, json};

use crate::common::backend::{Backend, TOKEN};
use crate::common::customer::Customer;
use crate::common::setup::wait_for;
use crate::common::site::Site;
use crate::common::{Service, end, free_port, must, must_json, run, stderr};
use crate::crash::coins::{Coin, Denom, money};

/// A contract that a wallet has claimed.
struct Contract {
    id: String,
    terms: ContractTerms,
    hash: HashCode,
}

/// A merchant backend, and where its exchange is.
struct World {
    dir: tempfile::TempDir,
    backend: Backend,
    exchange_url: String,
}

impl World {
    /// A shop that trusts an exchange, given as URL and master key.
    async fn open(client: &Client, exchange: (&str, &str), database: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut backend = Backend::stored(dir.path(), client.clone(), exchange, database);
        backend.start();
        backend.open_shop("KUDOS:0.01").await;
        Self { dir, backend, exchange_url: exchange.0.to_owned() }
    }

    /// Kills the backend and starts it again.
    fn restart(&mut self) {
        self.backend.kill_9();
        self.backend.start();
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        self.backend.post(path, body).await
    }

    async fn get(&self, path: &str) -> Value {
        self.backend.get(path).await
    }

    /// Orders and claims.
    async fn contract(&self, amount: &str) -> Contract {
        self.claimed(json!({ "order": { "amount": format!("KUDOS:{amount}"), "summary": "a book" } })).await
    }

    /// Orders and claims what can be refunded for a while, and is not transferred before.
    async fn refundable(&self, amount: &str) -> Contract {
        let order = json!({ "amount": format!("KUDOS:{amount}"), "summary": "a book" });
        self.claimed(json!({ "order": order, "refund_delay": { "d_us": 3_600_000_000_u64 } })).await
    }

    async fn claimed(&self, wish: Value) -> Contract {
        let made: Value = self.post("private/orders", &wish).await.ok().unwrap();
        let id = made["order_id"].as_str().unwrap().to_owned();
        let nonce = EddsaPrivateKey::generate().public_key().to_string();
        let wish = json!({ "nonce": nonce, "token": made["token"] });
        let claimed: ClaimResponse = self.post(&format!("orders/{id}/claim"), &wish).await.ok().unwrap();
        let hash = contract_hash(&claimed.contract_terms).unwrap();
        Contract { id, terms: serde_json::from_value(claimed.contract_terms).unwrap(), hash }
    }

    fn offer(&self, contract: &Contract, coins: &[(&Coin, &str)]) -> PayRequest {
        let pay = |(coin, amount): &(&Coin, &str)| -> PayCoin {
            coin.pay(&contract.terms, contract.hash, money(amount), &self.exchange_url)
        };
        PayRequest { coins: coins.iter().map(pay).collect(), session_id: None }
    }

    async fn pay(&self, contract: &Contract, offer: &PayRequest) -> Reply {
        self.post(&format!("orders/{}/pay", contract.id), &serde_json::to_value(offer).unwrap()).await
    }

    async fn paid(&self, contract: &Contract, offer: &PayRequest) -> PayResponse {
        let answer: PayResponse = self.pay(contract, offer).await.ok().unwrap();
        let message = MerchantPaymentOk { h_contract_terms: contract.hash };
        assert!(message.verify(&contract.terms.merchant_pub, &answer.sig));
        answer
    }
}

impl World {
    /// The operator sees the exchange's signing keys, and can have them forgotten.
    fn remembers_signing_keys(&self, master: &str) {
        let words = ["merchant", "signkeys", "-c", &self.backend.config];
        let seen = must_json(&[&words[..], &["--json"]].concat());
        let signkeys = seen["signkeys"].as_array().unwrap();
        assert!(!signkeys.is_empty() && signkeys.iter().all(|key| key["withdrawn"].is_null()), "{seen}");
        assert!(must(&words).contains(signkeys[0]["exchange_pub"].as_str().unwrap()));
        let forgotten = must_json(&[&words[..], &["--forget", master, "--json"]].concat());
        assert_eq!(forgotten["forgotten"], signkeys.len());
        assert_eq!(must(&words), "no signing key of an exchange is known\n");
        let wrong = run(&[&words[..], &["--forget", "key"]].concat());
        assert!(stderr(&wrong).contains("52 letters and digits"), "{}", stderr(&wrong));
    }

    async fn approve(&self, contract: &Contract, total: &str) -> Reply {
        let wish = json!({ "refund": format!("KUDOS:{total}"), "reason": "torn" });
        self.post(&format!("private/orders/{}/refund", contract.id), &wish).await
    }

    /// Picks up the refunds as the wallet does, and checks what the exchange has signed.
    async fn pick_up(&self, contract: &Contract) -> PickUpRefundResponse {
        let path = format!("orders/{}/refund", contract.id);
        let answer: PickUpRefundResponse =
            self.post(&path, &json!({ "h_contract": contract.hash })).await.ok().unwrap();
        let mut sum = batzen_protocol::Money::ZERO;
        for refund in &answer.refunds {
            let RefundResult::Success { exchange_sig, exchange_pub, .. } = &refund.result else {
                panic!("{refund:?}")
            };
            let message = ExchangeConfirmRefund {
                h_contract_terms: contract.hash,
                coin_pub: refund.coin_pub,
                merchant_pub: answer.merchant_pub,
                rtransaction_id: refund.rtransaction_id,
                refund_amount: refund.refund_amount,
            };
            assert!(message.verify(exchange_pub, exchange_sig));
            sum = sum.checked_add(refund.refund_amount.money).unwrap();
        }
        assert_eq!(sum, answer.refund_amount.money);
        answer
    }

    /// The refunds that the customer sees.
    async fn refunds(&self, contract: &Contract, query: &str) -> Value {
        let mut seen = self.get(&format!("orders/{}?h_contract={}{query}", contract.id, contract.hash)).await;
        seen.as_object_mut().unwrap().remove("fulfillment_url");
        seen
    }

    /// The shop refunds a part, and more; the wallet gets it although the backend is killed.
    async fn refunds_reach_the_wallet(&mut self, contract: &Contract) {
        let none = json!({
            "refunded": false, "refund_pending": false, "refund_amount": "KUDOS:0", "refund_taken": "KUDOS:0",
        });
        assert_eq!(self.refunds(contract, "").await, none);
        refused(&self.approve(contract, "3").await, 409, 2530);
        let waiting = self.refunds(contract, "&refund=KUDOS:0.4&timeout_ms=60000");
        let (seen, approved) = tokio::join!(waiting, self.approve(contract, "0.5"));
        let approved: Value = approved.ok().unwrap();
        assert!(approved["taler_refund_uri"].as_str().unwrap().starts_with("taler+http://refund/"));
        let pending = json!({
            "refunded": true, "refund_pending": true, "refund_amount": "KUDOS:0.5", "refund_taken": "KUDOS:0",
        });
        assert_eq!(seen, pending);
        self.restart();
        assert_eq!(self.refunds(contract, "").await, pending);
        let first = self.pick_up(contract).await;
        assert_eq!((first.refunds.len(), first.refund_amount.money), (1, money("0.5")));
        assert_eq!(self.pick_up(contract).await, first, "a refund is made once");
        // A new total in another second, which makes it another step; and one below it, which changes nothing.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        for total in ["2.5", "1"] {
            assert_eq!(self.approve(contract, total).await.status, 200);
        }
        let waiting = self.refunds(contract, "&await_refund_obtained=yes&timeout_ms=60000");
        let (seen, second) = tokio::join!(waiting, self.pick_up(contract));
        assert_eq!((second.refunds.len(), second.refund_amount.money), (3, money("2.5")));
        assert_eq!(second.refunds[0], first.refunds[0]);
        let taken = json!({
            "refunded": true, "refund_pending": false, "refund_amount": "KUDOS:2.5",
            "refund_taken": "KUDOS:2.5",
        });
        assert_eq!(seen, taken);
        self.restart();
        assert_eq!(self.pick_up(contract).await, second);
        let seen = self.get(&format!("private/orders/{}", contract.id)).await;
        let steps = seen["refund_details"].as_array().unwrap();
        let steps: Vec<_> = steps.iter().map(|step| (&step["amount"], &step["pending"])).collect();
        let expected = [(&json!("KUDOS:0.5"), &json!(false)), (&json!("KUDOS:2"), &json!(false))];
        assert_eq!(steps, expected, "{seen}");
        let list = self.get("private/orders?refunded=yes").await;
        assert_eq!(list["orders"].as_array().unwrap().len(), 1, "{list}");
        assert_eq!(list["orders"][0]["refundable"], true);
    }

    /// A payment with a coin that was spent is given up: the exchange took none of its coins, and the other one pays for
    /// something else.
    async fn gives_up(&self, good: &Coin, spent: &Coin) {
        let contract = self.refundable("2.98").await;
        let offer = self.offer(&contract, &[(good, "1"), (spent, "2")]);
        refused(&self.pay(&contract, &offer).await, 409, 2150);
        let coin = |coin: &Coin, amount: &str| json!({ "coin_pub": coin.key_pub, "contribution": amount, "exchange_url": self.exchange_url });
        let coins = [coin(spent, "KUDOS:2"), coin(good, "KUDOS:1")];
        let abort = json!({ "h_contract": contract.hash, "coins": coins });
        let path = format!("orders/{}/abort", contract.id);
        let answer: AbortResponse = self.post(&path, &abort).await.ok().unwrap();
        let is_unknown =
            |refund: &RefundResult| matches!(refund, RefundResult::Failure { exchange_status: 404, .. });
        assert!(answer.refunds.len() == 2 && answer.refunds.iter().all(is_unknown), "{answer:?}");
        let again: AbortResponse = self.post(&path, &abort).await.ok().unwrap();
        assert_eq!(again.refunds[1], answer.refunds[1]);
        // What was given up does not pay.
        let offer = self.offer(&contract, &[(good, "1")]);
        refused(&self.pay(&contract, &offer).await, 402, 2167);
        let contract = self.refundable("0.9").await;
        let offer = self.offer(&contract, &[(good, "0.9")]);
        self.paid(&contract, &offer).await;
    }
}

impl World {
    /// A second process on the same database sees the shop's orders, and its long polls end with a payment at the first.
    async fn another_process_serves_the_same_shop(&self, paid: &Contract) {
        let port = free_port();
        let text = std::fs::read_to_string(&self.backend.config).unwrap();
        let file = self.dir.path().join("second.conf");
        let (first, second) = (format!("PORT = {}", self.backend.port), format!("PORT = {port}"));
        std::fs::write(&file, text.replace(&first, &second)).unwrap();
        let words = ["merchant", "serve", "-c", file.to_str().unwrap()];
        let second = Service::start(self.dir.path(), "second", &words);
        wait_for(port, "/ready");
        let get = |path: String| {
            let call = self.backend.client.get(format!("http://localhost:{port}/{path}"));
            let call = call.header("authorization", &format!("Bearer {TOKEN}"));
            async move { call.send().await.unwrap() }
        };
        let seen: Value = get(format!("private/orders/{}", paid.id)).await.ok().unwrap();
        assert_eq!(seen["order_status"], "paid");
        let free = self.contract("0").await;
        let poll = get(format!("orders/{}?h_contract={}&timeout_ms=60000", free.id, free.hash));
        let pay = async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let offer = PayRequest { coins: Vec::new(), session_id: None };
            self.paid(&free, &offer).await
        };
        let (seen, _) = tokio::join!(poll, pay);
        assert_eq!(seen.status, 200, "{seen:?}");
        assert!(second.terminate().0.success());
    }

    /// A backup does not know the latest payments. The wallet repeats them, and pays nothing more.
    async fn is_restored_from_a_backup(&mut self, coin: &Coin) {
        let contract = self.contract("1.99").await;
        self.backend.stop();
        let (data, backup) = (self.dir.path().join("merchant"), self.dir.path().join("backup"));
        let copied = std::process::Command::new("cp").arg("-a").args([&data, &backup]).status().unwrap();
        assert!(copied.success());
        self.backend.start();
        let offer = self.offer(&contract, &[(coin, "2")]);
        let receipt = self.paid(&contract, &offer).await;
        self.backend.kill_9();
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&backup, &data).unwrap();
        self.backend.start();
        let order = format!("private/orders/{}", contract.id);
        assert_eq!(self.get(&order).await["order_status"], "claimed");
        assert_eq!(self.paid(&contract, &offer).await, receipt);
        assert_eq!(self.get(&order).await["deposit_total"], "KUDOS:1.99");
    }

    async fn confirms_its_transfers(&self, contract: &Contract) {
        let order = format!("private/orders/{}", contract.id);
        let seen = self.get(&format!("{order}?transfer=YES")).await;
        assert_eq!((&seen["wired"], &seen["wire_reports"]), (&json!(false), &json!([])), "{seen}");
        let details = seen["wire_details"].as_array().unwrap();
        assert!(!details.is_empty() && details.iter().all(|detail| detail["confirmed"] == false), "{seen}");
        for detail in details {
            let url = format!("{}transfers/{}", self.exchange_url, detail["wtid"].as_str().unwrap());
            let transfer: Value = self.backend.client.get_json(url).await.unwrap().ok().unwrap();
            let mut report = json!({
                "credit_amount": transfer["total"], "wtid": detail["wtid"], "exchange_url": self.exchange_url,
                "payto_uri": "payto://x-taler-bank/localhost/books?receiver-name=books",
            });
            let answer: Value = self.post("private/transfers", &report).await.ok().unwrap();
            assert_eq!(answer["total"], transfer["total"]);
            let sums = answer["deposits_sums"].as_array().unwrap();
            assert!(sums.iter().any(|sum| sum["order_id"] == json!(contract.id)), "{answer}");
            report["credit_amount"] = json!("KUDOS:100");
            refused(&self.post("private/transfers", &report).await, 409, 2557);
        }
        assert_eq!(self.get(&order).await["wired"], true);
    }
}

fn refused(reply: &Reply, status: u16, code: u32) -> Value {
    let body: Value = reply.json().unwrap();
    assert_eq!((reply.status, body["code"].as_u64()), (status, Some(code.into())), "{body}");
    body
}

fn master_key(client: &Client, url: &str) -> impl Future<Output = EddsaPublicKey> {
    let call = client.get_json(format!("{url}keys"));
    async move {
        let keys: Value = call.await.unwrap().ok().unwrap();
        keys["master_public_key"].as_str().unwrap().parse().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_is_paid_whatever_happens_to_its_backend_and_its_exchange() {
    let site = Site::with_fees("");
    let (bank, exchange) = (site.start_bank(), site.start_exchange());
    let client = Client::new(&ClientOptions::default()).unwrap();
    let exchange_url = site.exchange_url();
    let customer = Customer::new(vec![site.exchange_port], site.bank_port);
    let denoms = Denom::offered(&client, &exchange_url).await;
    let reserve = customer.reserve("100").await;
    let cs = denoms.iter().find(|denom| denom.is_cs()).unwrap();
    let rsa = denoms.iter().find(|denom| !denom.is_cs()).unwrap();
    let master = master_key(&client, &exchange_url).await.to_string();

    let mut sold = Vec::new();
    for database in [None, Some(batzen_testkit::postgres::fresh_database())] {
        let is_shared = database.is_some();
        let mut world = World::open(&client, (&exchange_url, &master), database.as_deref()).await;

        // Two coins of different ciphers pay; the same request again gets the same receipt.
        let contract = world.contract("2.98").await;
        let (one, two) = (customer.withdraw(&reserve, cs).await, customer.withdraw(&reserve, rsa).await);
        let offer = world.offer(&contract, &[(&one, "1"), (&two, "2")]);
        let short = world.offer(&contract, &[(&two, "2")]);
        refused(&world.pay(&contract, &short).await, 406, 2156);
        let less = world.offer(&contract, &[(&one, "0.99"), (&two, "1.99")]);
        refused(&world.pay(&contract, &less).await, 406, 2155);
        let mut forged = world.offer(&contract, &[(&one, "1"), (&two, "2")]);
        forged.coins[0].coin_sig = forged.coins[1].coin_sig;
        refused(&world.pay(&contract, &forged).await, 403, 2157);
        let mut unknown = world.offer(&contract, &[(&one, "1"), (&two, "2")]);
        unknown.coins[0].h_denom = HashCode::from_bytes([9; 64]);
        refused(&world.pay(&contract, &unknown).await, 400, 2151);
        let receipt = world.paid(&contract, &offer).await;
        assert_eq!(world.paid(&contract, &offer).await, receipt);
        let seen = world.get(&format!("private/orders/{}", contract.id)).await;
        assert_eq!((&seen["order_status"], &seen["deposit_total"]), (&json!("paid"), &json!("KUDOS:2.98")));
        let other = customer.withdraw(&reserve, rsa).await;
        let again = world.offer(&contract, &[(&other, "2")]);
        refused(&world.pay(&contract, &again).await, 409, 2160);

        // This contract allows no refunds; the next one does.
        refused(&world.approve(&contract, "0.5").await, 403, 2532);
        let contract = world.refundable("2.98").await;
        refused(&world.approve(&contract, "0.5").await, 409, 2531);
        let coins = (customer.withdraw(&reserve, cs).await, customer.withdraw(&reserve, rsa).await);
        let offer = world.offer(&contract, &[(&coins.0, "1"), (&coins.1, "2")]);
        world.paid(&contract, &offer).await;
        world.refunds_reach_the_wallet(&contract).await;
        world.gives_up(&customer.withdraw(&reserve, cs).await, &coins.1).await;

        // A coin that was spent does not pay again. What the other coin paid is kept, and a fresh one pays the rest.
        let contract = world.contract("2.98").await;
        let good = customer.withdraw(&reserve, cs).await;
        let offer = world.offer(&contract, &[(&good, "1"), (&two, "2")]);
        let body = refused(&world.pay(&contract, &offer).await, 409, 2150);
        assert_eq!(body["exchange_http_status"], 409);
        assert_eq!(body["exchange_reply"]["coin_pub"], json!(two.key_pub));
        assert_eq!(body["exchange_code"], body["exchange_reply"]["code"]);
        // The backend is killed in between.
        world.restart();
        let offer = world.offer(&contract, &[(&good, "1"), (&other, "2")]);
        let receipt = world.paid(&contract, &offer).await;
        world.restart();
        assert_eq!(world.paid(&contract, &offer).await, receipt);
        let list = world.get("private/orders?paid=yes").await;
        assert_eq!(list["orders"].as_array().unwrap().len(), 4, "{list}");
        if is_shared {
            world.another_process_serves_the_same_shop(&contract).await;
        } else {
            world.is_restored_from_a_backup(&customer.withdraw(&reserve, rsa).await).await;
        }
        world.backend.stop();
        sold.push((world, contract));
    }

    // The exchange is unreachable: the wallet may try again, and then it works.
    let coin = customer.withdraw(&reserve, rsa).await;
    assert!(exchange.terminate().0.success());
    let mut world = World::open(&client, (&exchange_url, &master), None).await;
    let contract = world.contract("1.99").await;
    let offer = world.offer(&contract, &[(&coin, "2")]);
    let reply = world.pay(&contract, &offer).await;
    assert!(reply.status >= 500, "{reply:?}");
    let exchange = site.start_exchange();
    world.paid(&contract, &offer).await;

    // The bank pays the shop, and all books are right.
    world.backend.stop();
    assert!(exchange.terminate().0.success());
    for worker in ["aggregator", "transfer"] {
        must(&["exchange", worker, "-c", &site.config, "-t"]);
    }
    let totals = site.totals();
    // Two payments of 2.98 at each of two backends, and two of 1.99.
    assert_eq!(totals["wired_out"], "15.9", "{totals}");

    // The shops learn which transfers pay for an order, and confirm them.
    let exchange = site.start_exchange();
    for (mut world, contract) in sold {
        world.backend.start();
        world.confirms_its_transfers(&contract).await;
        world.backend.stop();
        world.remembers_signing_keys(&master);
    }
    end([exchange, bank]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wallet_buys_a_book() {
    let site = Site::with_fees("");
    let (bank, exchange) = (site.start_bank(), site.start_exchange());
    let client = Client::new(&ClientOptions::default()).unwrap();
    let exchange_url = site.exchange_url();
    let master = master_key(&client, &exchange_url).await.to_string();
    let mut world = World::open(&client, (&exchange_url, &master), None).await;
    let wallet = |words: &[&str]| {
        let words = [&["--json"][..], words].concat();
        let text = tokio::task::block_in_place(|| site.must_wallet("wallet", &words));
        serde_json::from_str::<Value>(&text).unwrap()
    };
    tokio::task::block_in_place(|| site.withdraw("wallet", "KUDOS:20"));

    let article = "https://shop.example/article";
    let wish = json!({ "order": { "amount": "KUDOS:3", "summary": "a book", "fulfillment_url": article } });
    let made: Value = world.post("private/orders", &wish).await.ok().unwrap();
    let id = made["order_id"].as_str().unwrap();
    let status = |id: &str, session: &str| {
        let path = format!("private/orders/{id}?session_id={session}");
        let world = &world;
        async move { world.get(&path).await }
    };
    let unpaid = status(id, "A").await;
    assert_eq!(unpaid["order_status"], "unpaid");
    let bought = wallet(&["pay", unpaid["taler_pay_uri"].as_str().unwrap(), "--yes"]);
    assert!(bought.to_string().contains("a book"), "{bought}");
    let paid = status(id, "A").await;
    assert_eq!(paid["order_status"], "paid");
    assert!(paid["deposit_total"] != json!("KUDOS:0"), "{paid}");
    // The same article for another session: the wallet shows its receipt, and pays nothing.
    let balance = wallet(&["balance"]);
    let made: Value = world.post("private/orders", &wish).await.ok().unwrap();
    let again = status(made["order_id"].as_str().unwrap(), "B").await;
    wallet(&["pay", again["taler_pay_uri"].as_str().unwrap(), "--yes"]);
    assert_eq!(status(id, "B").await["order_status"], "paid");
    assert_eq!(wallet(&["balance"])["balances"][0]["total"], balance["balances"][0]["total"]);
    world.backend.stop();
    end([exchange, bank]);
}
