//! A shop gets paid: bank, exchange and merchant backend as real processes, with real coins of both ciphers. Backends
//! are killed, exchanges go away, coins are offered twice.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http_client::{Client, ClientOptions, Reply};
use batzen_protocol::api::merchant::{ClaimResponse, ContractTerms, PayCoin, PayRequest, PayResponse};
use batzen_protocol::canonical::contract_hash;
use batzen_protocol::signatures::{MerchantPaymentOk, SignedMessage};
use serde_json::{Value, json};

use crate::common::customer::Customer;
use crate::common::setup::{config_with_fees, wait_for};
use crate::common::{Service, free_port, run, stderr, stdout};
use crate::crash::coins::{Coin, Denom, money};

const TOKEN: &str = "secret-token:books";

/// A contract that a wallet has claimed.
struct Contract {
    id: String,
    terms: ContractTerms,
    hash: HashCode,
}

/// A merchant backend, and where its exchange is.
struct World {
    dir: tempfile::TempDir,
    config: String,
    port: u16,
    exchange_url: String,
    client: Client,
    backend: Option<Service>,
}

impl World {
    fn start(&mut self) {
        let words = ["merchant", "serve", "-c", &self.config];
        self.backend = Some(Service::start(self.dir.path(), "merchant", &words));
        wait_for(self.port, "/ready");
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        let call = self.client.post(format!("http://localhost:{}/{path}", self.port)).json(body);
        call.header("authorization", &format!("Bearer {TOKEN}")).send().await.unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let call = self.client.get(format!("http://localhost:{}/{path}", self.port));
        call.header("authorization", &format!("Bearer {TOKEN}")).send().await.unwrap().ok().unwrap()
    }

    async fn open_shop(&self) {
        let shop = json!({
            "id": "default", "name": "Books", "auth": { "method": "token", "token": TOKEN },
            "payto_uris": ["payto://x-taler-bank/localhost/books?receiver-name=books"],
            "address": {}, "jurisdiction": {},
            "default_max_wire_fee": "KUDOS:1", "default_max_deposit_fee": "KUDOS:0.01",
            "default_wire_fee_amortization": 1,
            "default_wire_transfer_delay": { "d_us": 0 }, "default_pay_delay": { "d_us": 3_600_000_000_u64 },
        });
        let reply = self.post("management/instances", &shop).await;
        assert_eq!(reply.status, 204, "{reply:?}");
    }

    /// Orders and claims.
    async fn contract(&self, amount: &str) -> Contract {
        let wish = json!({ "order": { "amount": format!("KUDOS:{amount}"), "summary": "a book" } });
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
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port) = (free_port(), free_port());
    let config = config_with_fees(dir.path(), bank_port, exchange_port, "");
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    let start_exchange = || {
        let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config]);
        wait_for(exchange_port, "/keys");
        wait_for(exchange_port, "/wire");
        exchange
    };
    let exchange = start_exchange();
    let client = Client::new(&ClientOptions::default()).unwrap();
    let exchange_url = format!("http://localhost:{exchange_port}/");
    let customer = Customer::new(vec![exchange_port], bank_port);
    let denoms = Denom::offered(&client, &exchange_url).await;
    let reserve = customer.reserve("100").await;
    let cs = denoms.iter().find(|denom| denom.is_cs()).unwrap();
    let rsa = denoms.iter().find(|denom| !denom.is_cs()).unwrap();
    let master = master_key(&client, &exchange_url).await;

    for database in [None, Some(batzen_pg_cluster::fresh_database())] {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let file = dir.path().join("merchant.conf");
        let store = database.map_or_else(String::new, |url| {
            format!("DB = postgres\n[merchantdb-postgres]\nCONFIG = {url}\n")
        });
        let text = format!(
            "[taler]\nCURRENCY = KUDOS\n[merchant-exchange-one]\nEXCHANGE_BASE_URL = {exchange_url}\n\
             MASTER_KEY = {master}\nCURRENCY = KUDOS\n\
             [merchant]\nPORT = {port}\nBIND_TO = 127.0.0.1\nDATA_DIR = {}\n{store}",
            dir.path().join("data").display()
        );
        std::fs::write(&file, text).unwrap();
        let config = file.to_str().unwrap().to_owned();
        let output = run(&["merchant", "dbinit", "-c", &config]);
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        let (client, exchange_url) = (client.clone(), exchange_url.clone());
        let mut world = World { dir, config, port, exchange_url, client, backend: None };
        world.start();
        world.open_shop().await;

        // Two coins of different ciphers pay; the same request again gets the same receipt.
        let contract = world.contract("2.98").await;
        let (one, two) = (customer.withdraw(&reserve, cs).await, customer.withdraw(&reserve, rsa).await);
        let offer = world.offer(&contract, &[(&one, "1"), (&two, "2")]);
        let short = world.offer(&contract, &[(&two, "2")]);
        refused(&world.pay(&contract, &short).await, 406, 2156);
        let less = world.offer(&contract, &[(&one, "0.99"), (&two, "1.99")]);
        refused(&world.pay(&contract, &less).await, 406, 2155);
        let mut forged = world.offer(&contract, &[(&one, "1"), (&two, "2")]);
        forged.coins[0].contribution = forged.coins[1].contribution;
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

        // A coin that was spent does not pay again. What the other coin paid is kept, and a fresh one pays the rest.
        let contract = world.contract("2.98").await;
        let good = customer.withdraw(&reserve, cs).await;
        let offer = world.offer(&contract, &[(&good, "1"), (&two, "2")]);
        let body = refused(&world.pay(&contract, &offer).await, 409, 2150);
        assert_eq!(body["exchange_http_status"], 409);
        assert_eq!(body["exchange_reply"]["coin_pub"], json!(two.key_pub));
        assert_eq!(body["exchange_code"], body["exchange_reply"]["code"]);
        // The backend is killed in between.
        world.backend.take().unwrap().kill_9();
        world.start();
        let offer = world.offer(&contract, &[(&good, "1"), (&other, "2")]);
        let receipt = world.paid(&contract, &offer).await;
        world.backend.take().unwrap().kill_9();
        world.start();
        assert_eq!(world.paid(&contract, &offer).await, receipt);
        let list = world.get("private/orders?paid=yes").await;
        assert_eq!(list["orders"].as_array().unwrap().len(), 2, "{list}");
        assert!(world.backend.take().unwrap().terminate().0.success());
    }

    // The exchange is away: the wallet may try again, and then it works.
    let (data, port) = (tempfile::tempdir().unwrap(), free_port());
    let file = data.path().join("merchant.conf");
    let text = format!(
        "[taler]\nCURRENCY = KUDOS\n[merchant-exchange-one]\nEXCHANGE_BASE_URL = {exchange_url}\n\
         MASTER_KEY = {master}\n[merchant]\nPORT = {port}\nBIND_TO = 127.0.0.1\nDATA_DIR = {}\n",
        data.path().join("data").display()
    );
    std::fs::write(&file, text).unwrap();
    let config_file = file.to_str().unwrap().to_owned();
    let coin = customer.withdraw(&reserve, rsa).await;
    assert!(exchange.terminate().0.success());
    let mut world = World {
        dir: data,
        config: config_file,
        port,
        exchange_url: exchange_url.clone(),
        client,
        backend: None,
    };
    world.start();
    world.open_shop().await;
    let contract = world.contract("1.99").await;
    let offer = world.offer(&contract, &[(&coin, "2")]);
    let reply = world.pay(&contract, &offer).await;
    assert!(reply.status >= 500, "{reply:?}");
    let exchange = start_exchange();
    world.paid(&contract, &offer).await;

    // The bank pays the shop, and all books are right.
    assert!(world.backend.take().unwrap().terminate().0.success());
    assert!(exchange.terminate().0.success());
    for worker in ["aggregator", "transfer"] {
        let output = run(&["exchange", worker, "-c", &config, "-t"]);
        assert!(output.status.success(), "{worker}: {}", stderr(&output));
    }
    let totals = run(&["exchange", "totals", "-c", &config, "--json"]);
    assert!(totals.status.success(), "{}{}", stdout(&totals), stderr(&totals));
    let totals: Value = serde_json::from_str(&stdout(&totals)).unwrap();
    // Two payments of 2.98 at each of two backends, and one of 1.99.
    assert_eq!(totals["wired_out"], "13.91", "{totals}");
    assert!(bank.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wallet_buys_a_book() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port, port) = (free_port(), free_port(), free_port());
    let config = config_with_fees(dir.path(), bank_port, exchange_port, "");
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config]);
    wait_for(exchange_port, "/keys");
    wait_for(exchange_port, "/wire");
    let client = Client::new(&ClientOptions::default()).unwrap();
    let exchange_url = format!("http://localhost:{exchange_port}/");
    let master = master_key(&client, &exchange_url).await;
    let text = format!(
        "[taler]\nCURRENCY = KUDOS\n[merchant-exchange-one]\nEXCHANGE_BASE_URL = {exchange_url}\n\
         MASTER_KEY = {master}\n[merchant]\nPORT = {port}\nBIND_TO = 127.0.0.1\nDATA_DIR = {}\n",
        dir.path().join("merchant").display()
    );
    let file = dir.path().join("merchant.conf");
    std::fs::write(&file, text).unwrap();
    let wallet_file = dir.path().join("wallet.db").to_str().unwrap().to_owned();
    let config = file.to_str().unwrap().to_owned();
    let mut world = World { dir, config, port, exchange_url, client, backend: None };
    world.start();
    world.open_shop().await;
    let wallet = |words: &[&str]| {
        let words = [&["wallet", "--wallet", &wallet_file, "--json"][..], words].concat();
        tokio::task::block_in_place(|| {
            let output = run(&words);
            assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        })
    };
    let bank_url = format!("http://localhost:{bank_port}/");
    let at_bank =
        ["--bank", &bank_url, "--user", "zoe", "--password", "zoe", "--exchange", &world.exchange_url];
    wallet(&[&["withdraw", "--yes", "--amount", "KUDOS:20"][..], &at_bank].concat());

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
    for service in [world.backend.take().unwrap(), exchange, bank] {
        assert!(service.terminate().0.success());
    }
}
