//! Neither a failing ledger nor a switch that ends between two steps can break these guarantees: each
//! transfer has exactly one outcome, payer and payee are told the same, and every balance matches the
//! history.
use crate::common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_http::Method;
use batzen_ledger::{
    Account, Answer, CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, LedgerError,
    MemoryLedger, Transfer,
};
use batzen_store::Store;
use batzen_switch::Switch;
use batzen_switch::messages::TransferState;
use batzen_switch::rules::state::{TransferStage, history};
use batzen_switch::values::{format_hash, format_uuid};
use batzen_tables::switch::{Nets, SwitchStateKey, SwitchStates, Transfers};
use common::{Scene, TestClock, config, memory_ledger};

const SECRET: [u8; 32] = [7; 32];

/// A ledger that loses answers, before or after it has acted, in a fixed sequence.
struct Lossy {
    ledger: Arc<MemoryLedger>,
    turn: AtomicU64,
    failing: AtomicBool,
    /// Stops responding for good.
    dead: AtomicBool,
    /// The sizes of the requests that it has acted on.
    sizes: Mutex<Vec<usize>>,
}

impl Ledger for Lossy {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        self.ledger.create_accounts(events)
    }
    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        Box::pin(async move {
            if self.dead.load(Ordering::SeqCst) {
                return Err(LedgerError::Busy("planted".to_owned()));
            }
            self.sizes.lock().unwrap().push(events.len());
            let turn = self.turn.fetch_add(1, Ordering::SeqCst);
            match turn % 4 {
                _ if !self.failing.load(Ordering::SeqCst) => self.ledger.create_transfers(events).await,
                0 => Err(LedgerError::Busy("planted".to_owned())),
                1 => {
                    let _ = self.ledger.create_transfers(events).await;
                    Err(LedgerError::Unknown("planted".to_owned()))
                }
                2 => Err(LedgerError::Unknown("planted".to_owned())),
                _ => self.ledger.create_transfers(events).await,
            }
        })
    }
    batzen_ledger::delegate_reads!(ledger);
}

fn lossy(clock: &Arc<TestClock>) -> Arc<Lossy> {
    Arc::new(Lossy {
        ledger: memory_ledger(clock),
        turn: AtomicU64::new(0),
        failing: AtomicBool::new(false),
        dead: AtomicBool::new(false),
        sizes: Mutex::default(),
    })
}

/// Recomputes positions and window totals from the histories alone, and compares.
async fn check_books(scene: &Scene, store: &Store) {
    let mut positions: HashMap<u32, i128> = HashMap::new();
    let mut nets: HashMap<(u64, u32), i128> = HashMap::new();
    for found in store.all::<Transfers>().unwrap() {
        let row = found.row;
        let steps: Vec<_> = history(&row).collect();
        assert!(steps.windows(2).all(|pair| pair[0].state.may_become(pair[1].state)));
        assert!(steps.windows(2).all(|pair| pair[0].micros <= pair[1].micros));
        assert_eq!(steps.iter().filter(|step| step.state.is_final()).count(), 1, "one final state");
        assert_eq!((TransferStage::of(&row), row.intent), (steps.last().unwrap().state, 0));
        if TransferStage::of(&row).external() == TransferState::Committed {
            let amount = i128::try_from(row.amount).unwrap();
            *positions.entry(row.payer).or_default() += amount;
            *positions.entry(row.payee).or_default() -= amount;
            *nets.entry((row.window, row.payer)).or_default() += amount;
            *nets.entry((row.window, row.payee)).or_default() -= amount;
        } else {
            assert_eq!(row.window, 0);
        }
    }
    for participant in 1..=u32::try_from(scene.fsps.len()).unwrap() {
        let balances = scene.balances(participant).await;
        assert_eq!(balances.reserved(), 0);
        assert_eq!(balances.position(), positions.get(&participant).copied().unwrap_or(0));
        assert!(balances.granted() >= balances.position(), "headroom is never negative");
    }
    for found in store.all::<Nets>().unwrap() {
        let net = i128::try_from(found.row.sent).unwrap() - i128::try_from(found.row.received).unwrap();
        assert_eq!(nets.remove(&(found.key.window, found.key.participant)).unwrap_or(0), net);
    }
    assert!(nets.values().all(|net| *net == 0));
    assert_eq!(store.get::<SwitchStates>(&SwitchStateKey::ONLY).unwrap().unwrap().row.open_in_flight, 0);
}

async fn until_idle(store: &Store, allow_reserved: bool) {
    for _ in 0..2000 {
        let open = store.all::<Transfers>().unwrap().into_iter().any(|found| {
            let state = TransferStage::of(&found.row);
            let is_waiting = state == TransferStage::Reserved && found.row.intent == 0;
            !(state.is_final() || allow_reserved && is_waiting)
        });
        if !open {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let all = store.all::<Transfers>().unwrap().into_iter();
    let open: Vec<_> = all.map(|found| found.row).filter(|row| !TransferStage::of(row).is_final()).collect();
    panic!("transfers are left open: {open:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fulfilments_refusals_repetitions_and_expiry_race_to_one_outcome() {
    let clock = TestClock::new();
    let ledger = lossy(&clock);
    let scene = Scene::over(3, Arc::clone(&clock), Arc::clone(&ledger) as Arc<dyn Ledger>).await;
    ledger.failing.store(true, Ordering::SeqCst);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut all = Vec::new();
    for _ in 0..6 {
        let mut transfers = Vec::new();
        for _ in 0..12 {
            let payer = usize::try_from(random(3)).unwrap();
            let payee = (payer + 1 + usize::try_from(random(2)).unwrap()) % 3;
            let id = scene.id();
            let amount = (1 + random(400)).to_string();
            let body = scene.body(id, payer, payee, &amount, &SECRET);
            transfers.push((id, payer, payee, body, random(8)));
        }
        let scene = &scene;
        let prepares = transfers.iter().map(|(_, payer, payee, body, _)| async move {
            tokio::join!(scene.prepare(*payer, *payee, body), scene.prepare(*payer, *payee, body))
        });
        join_all(prepares).await;
        until_idle(&scene.store, true).await;
        let expires = random(2) == 1;
        let answers = transfers.iter().map(|(id, payer, payee, _, what)| async move {
            let (id, payer, payee) = (*id, *payer, *payee);
            let (good, bad) = (SECRET, [8; 32]);
            match what {
                0 => drop(tokio::join!(
                    scene.fulfil(id, payee, payer, "COMMITTED", &good),
                    scene.refuse(id, payee, payer, "5100")
                )),
                1 => drop(tokio::join!(
                    scene.fulfil(id, payee, payer, "RESERVED", &bad),
                    scene.fulfil(id, payee, payer, "RESERVED", &good)
                )),
                2 => drop(scene.refuse(id, payee, payer, "5104").await),
                3 => {}
                _ => drop(tokio::join!(
                    scene.fulfil(id, payee, payer, "RESERVED", &good),
                    scene.fulfil(id, payee, payer, "RESERVED", &good)
                )),
            }
        });
        let expiry = async {
            if expires {
                clock.forward(30_001);
            }
        };
        tokio::join!(join_all(answers), expiry);
        clock.forward(30_001);
        until_idle(&scene.store, false).await;
        all.extend(transfers);
    }
    ledger.failing.store(false, Ordering::SeqCst);
    check_books(&scene, &scene.store).await;
    ledger.ledger.verify().unwrap();
    // Payer and payee received the same notice.
    for (id, payer, payee, ..) in all {
        let told = scene.fsps[payer].about(id, 1).await;
        let committed = |json: serde_json::Value| json["transferState"] == "COMMITTED";
        let payer_says: Vec<bool> = told
            .iter()
            .filter(|callback| callback.path.ends_with("/error") || committed(callback.json()))
            .map(|callback| committed(callback.json()))
            .collect();
        let row =
            scene.store.all::<Transfers>().unwrap().into_iter().find(|found| found.key.id == id).unwrap().row;
        let is = TransferStage::of(&row).external() == TransferState::Committed;
        assert!(!payer_says.is_empty() && payer_says.iter().all(|says| *says == is));
        for callback in scene.fsps[payee].callbacks() {
            let about = callback.path.contains(&batzen_switch::values::format_uuid(id));
            if about && callback.method == "PATCH" {
                assert_eq!(committed(callback.json()), is);
            }
        }
    }
}

async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done = vec![false; futures.len()];
    std::future::poll_fn(|context| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if !*done && future.as_mut().poll(context).is_ready() {
                *done = true;
            }
        }
        if done.iter().all(|done| *done) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_switch_leaves_behind_is_finished_by_the_next() {
    let clock = TestClock::new();
    let ledger = lossy(&clock);
    let mut scene = Scene::over(2, Arc::clone(&clock), Arc::clone(&ledger) as Arc<dyn Ledger>).await;
    for dies_at_fulfil in [false, true] {
        let id = scene.id();
        let body = scene.body(id, 0, 1, "10", &SECRET);
        // The ledger dies before or after it was asked to reserve; then the switch ends.
        ledger.dead.store(!dies_at_fulfil, Ordering::SeqCst);
        assert_eq!(scene.prepare(0, 1, &body).await, 202);
        if dies_at_fulfil {
            scene.fsps[1].about(id, 1).await;
            ledger.dead.store(true, Ordering::SeqCst);
            assert_eq!(scene.fulfil(id, 1, 0, "COMMITTED", &SECRET).await, 200);
        }
        scene = restart(scene, &ledger).await;
        if !dies_at_fulfil {
            scene.fsps[1].about(id, 1).await;
            assert_eq!(scene.fulfil(id, 1, 0, "COMMITTED", &SECRET).await, 200);
        }
        let told = scene.fsps[0].about(id, 1).await;
        assert_eq!(told[0].json()["transferState"], "COMMITTED");
    }
    check_books(&scene, &scene.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_that_is_left_behind_is_finished_and_asked_of_the_ledger_at_once() {
    let clock = TestClock::new();
    let ledger = lossy(&clock);
    let mut scene = Scene::over(2, Arc::clone(&clock), Arc::clone(&ledger) as Arc<dyn Ledger>).await;
    for (dies_at_prepare, dies_at_fulfil) in [(false, false), (true, false), (false, true)] {
        ledger.sizes.lock().unwrap().clear();
        let id = scene.id();
        let ids: Vec<u128> = (0..300).map(|_| scene.id()).collect();
        let items = ids.iter().map(|id| common::item(*id, "0.5", &SECRET)).collect();
        let body = scene.bulk(id, items).to_string();
        let fulfilment = |id: &u128| {
            let (id, fulfilment) = (format_uuid(*id), format_hash(&SECRET));
            serde_json::json!({ "transferId": id, "fulfilment": fulfilment })
        };
        let answer = common::answer(ids.iter().map(fulfilment).collect()).to_string();
        let path = format!("bulkTransfers/{}", format_uuid(id));
        ledger.dead.store(dies_at_prepare, Ordering::SeqCst);
        let reply = scene.send(Method::POST, "bulkTransfers", "fsp1", "fsp2", body.as_bytes()).await;
        assert_eq!(reply.status, 202);
        if dies_at_prepare {
            scene = restart(scene, &ledger).await;
        }
        scene.fsps[1].about(id, 1).await;
        ledger.dead.store(dies_at_fulfil, Ordering::SeqCst);
        assert_eq!(scene.send(Method::PUT, &path, "fsp2", "fsp1", answer.as_bytes()).await.status, 200);
        if dies_at_fulfil {
            scene = restart(scene, &ledger).await;
        }
        let told = scene.fsps[0].about(id, 1).await.remove(0).json();
        assert_eq!(told["bulkTransferState"], "COMPLETED");
        let results = told["individualTransferResults"].as_array().unwrap().clone();
        assert_eq!(results, ids.iter().map(fulfilment).collect::<Vec<_>>());
        let sizes = ledger.sizes.lock().unwrap().clone();
        assert_eq!(sizes.into_iter().filter(|size| *size >= 300).count(), 2, "one to reserve, one to post");
    }
    check_books(&scene, &scene.store).await;
    ledger.ledger.verify().unwrap();
}

/// Ends the switch and starts another one on the same store, with a ledger that works again.
async fn restart(scene: Scene, ledger: &Arc<Lossy>) -> Scene {
    let Scene { clock, switch, fsps, client, store, next_id } = scene;
    switch.shutdown().await.unwrap();
    ledger.dead.store(false, Ordering::SeqCst);
    let switch = Switch::start_on(config(&clock), store.clone(), Arc::clone(ledger) as Arc<dyn Ledger>);
    Scene { switch: switch.await.unwrap(), clock, fsps, client, store, next_id }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_are_repeated_until_they_are_taken() {
    let scene = Scene::new(2).await;
    scene.fsps[1].answer_with(&[503, 500, 503]);
    scene.transfer(0, 1, "10").await;
    // A message that is refused repeatedly is given up, and does not delay the next one.
    scene.fsps[1].answer_with(&[400, 400, 400]);
    let id = scene.id();
    scene.prepare(0, 1, &scene.body(id, 0, 1, "10", &SECRET)).await;
    scene.transfer(0, 1, "10").await;
}
