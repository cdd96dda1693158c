//! The rows for programs, with and without a running service.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use batzen_auditor::books::{Books, BooksError, Numbered, collect_garbage};
use batzen_auditor::live::clear;
use batzen_protocol::Timestamp;
use batzen_protocol::signatures::{MasterSigningKeyRevoked, SignedMessage};
use batzen_store::Table as _;
use batzen_tables::auditor::{DepositConfirmations, SigningKeyRevocations, SigningKeys};

use crate::common::{Auditor, Exchange};

fn texts(books: &Books, exchange: &Exchange) -> Vec<String> {
    let (master_pub, url) = (exchange.master_pub(), "https://exchange.example/");
    let text =
        |result: Result<(), BooksError>| result.map_or_else(|error| error.to_string(), |()| "ok".into());
    vec![
        text(books.add_exchange(master_pub, "https://exchange.example")),
        text(books.remove_exchange(master_pub)),
        text(books.add_exchange(master_pub, url)),
        text(books.add_exchange(master_pub, url)),
        text(books.remove_exchange(master_pub)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_get_the_same_answers_with_and_without_a_service() {
    let auditor = Auditor::start().await;
    let during = auditor.books(|books| texts(books, &Exchange::new())).await;
    assert_eq!(
        during,
        [
            "https://exchange.example: expected a URL that starts with http:// or https:// and ends with /",
            "the auditor does not audit this exchange",
            "ok",
            "the exchange is audited already, at https://exchange.example/",
            "ok",
        ]
    );
    let (config, _dir) = auditor.stop().await;
    assert!(!config.socket().exists(), "the service removes its socket");
    let books = Books::open(&config).unwrap();
    assert_eq!(texts(&books, &Exchange::new()), during);
    books.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmations_are_read_in_order_and_in_parts() {
    let (exchange, other) = (Exchange::new(), Exchange::new());
    let auditor = Auditor::of(&exchange).await;
    auditor.audit(&other).await;
    for number in 0..5 {
        assert_eq!(auditor.put(&exchange.confirmation(number)).await.status, 200);
        assert_eq!(auditor.put(&other.confirmation(number)).await.status, 200);
    }
    let master_pub = exchange.master_pub();
    let read = move |books: &Books| -> (Vec<Numbered>, Vec<Numbered>) {
        let first = books.confirmations(master_pub, 0, 2).unwrap();
        let rest = books.confirmations(master_pub, first[1].serial, 100).unwrap();
        assert_eq!(books.confirmations(master_pub, rest[2].serial, 100).unwrap(), []);
        assert_eq!(books.confirmations(master_pub, u64::MAX, 100).unwrap(), []);
        (first, rest)
    };
    let (first, rest) = auditor.books(read).await;
    assert_eq!((first.len(), rest.len()), (2, 3));
    let all: Vec<_> = first.iter().chain(&rest).collect();
    assert!(all.is_sorted_by(|one, next| one.serial < next.serial));
    let coins: Vec<_> = all.iter().map(|found| found.row.coin_pub).collect();
    let expected: Vec<_> = (0..5).map(|number| exchange.confirmation(number).coin_pub).collect();
    assert_eq!(coins, expected);
    // A program reads the same from the store itself.
    let (config, _dir) = auditor.stop().await;
    let books = Books::open(&config).unwrap();
    assert_eq!(read(&books), (first, rest));
    books.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_of_a_removed_exchange_goes_except_its_confirmations() {
    let (exchange, other) = (Exchange::new(), Exchange::new());
    let auditor = Auditor::of(&exchange).await;
    auditor.audit(&other).await;
    assert_eq!(auditor.put(&exchange.confirmation(1)).await.status, 200);
    assert_eq!(auditor.put(&other.confirmation(1)).await.status, 200);
    let (master_pub, exchange_pub) = (exchange.master_pub(), exchange.online.public_key());
    let master_sig = MasterSigningKeyRevoked { signkey_pub: exchange_pub }.sign(&exchange.master);
    auditor
        .books(move |books| {
            books.revoke(master_pub, exchange_pub, master_sig).unwrap();
            books.remove_exchange(master_pub).unwrap();
        })
        .await;
    let store = auditor.running.store();
    assert_eq!(store.all::<SigningKeys>().unwrap().len(), 1);
    assert_eq!(store.all::<SigningKeyRevocations>().unwrap().len(), 0);
    assert_eq!(auditor.stored(), 2);
    assert_eq!(auditor.put(&exchange.confirmation(2)).await.status, 404);
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_what_no_court_accepts() {
    let (exchange, other) = (Exchange::new(), Exchange::new());
    let auditor = Auditor::of(&exchange).await;
    auditor.audit(&other).await;
    assert_eq!(auditor.put(&exchange.confirmation(1)).await.status, 200);
    let mut lasting = other.confirmation(1);
    lasting.ep_end = Timestamp::from_micros(lasting.ep_end.as_micros() + 1_000_000);
    assert_eq!(auditor.put(&other.signed(lasting)).await.status, 200);
    let end = exchange.confirmation(1).ep_end;
    let refused = auditor.books(move |books| collect_garbage(books, end).unwrap_err().to_string()).await;
    assert!(refused.contains("stop the auditor's service first"), "{refused}");
    let now = Arc::clone(&auditor.now);
    let (config, _dir) = auditor.stop().await;
    let books = Books::open(&config).unwrap();
    let collect = |books: &Books| collect_garbage(books, config.clock.now()).unwrap();
    now.store(end.as_micros() / 1_000_000, Ordering::SeqCst);
    assert_eq!(collect(&books).confirmations, 0, "the last moment counts");
    now.store(end.as_micros() / 1_000_000 + 1, Ordering::SeqCst);
    let forgotten = collect(&books);
    assert_eq!((forgotten.signing_keys, forgotten.confirmations), (1, 1));
    assert_eq!(books.confirmations(exchange.master_pub(), 0, 10).unwrap(), []);
    assert_eq!(books.confirmations(other.master_pub(), 0, 10).unwrap().len(), 1);
    books.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_named_tables_are_emptied() {
    let exchange = Exchange::new();
    let auditor = Auditor::of(&exchange).await;
    for number in 0..3 {
        assert_eq!(auditor.put(&exchange.confirmation(number)).await.status, 200);
    }
    let (config, _dir) = auditor.stop().await;
    let store = config.service_store().open(&batzen_service::storage::AUDITOR, 1).unwrap();
    assert_eq!(clear(&store, &[DepositConfirmations::DEF]).unwrap(), 3);
    assert_eq!(clear(&store, &[DepositConfirmations::DEF]).unwrap(), 0);
    assert_eq!(store.all::<DepositConfirmations>().unwrap(), []);
    assert_eq!(store.all::<SigningKeys>().unwrap().len(), 1);
    store.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_currency_does_not_open_the_store() {
    let auditor = Auditor::start().await;
    let (mut config, _dir) = auditor.stop().await;
    config.currency = "EUR".parse().unwrap();
    let error = Books::open(&config).err().unwrap().to_string();
    assert_eq!(error, "the store holds an auditor of currency KUDOS");
    let error = batzen_auditor::RunningAuditor::start(config).await.err().unwrap().to_string();
    assert_eq!(error, "the store holds an auditor of currency KUDOS");
}
