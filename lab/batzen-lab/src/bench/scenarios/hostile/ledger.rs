//! Attacks on the ledger's binary port, beside transfers, each over a new connection.

use std::sync::Arc;

use batzen_ledger::{Account, BATCH_EVENTS_MAX, CreateTransferStatus, Ledger, QueryFilter, Transfer};
use batzen_ledger_service::net::body::push_all;
use batzen_ledger_service::net::connect;
use batzen_ledger_service::net::frame::{BODY_BYTES_MAX, Header, Hello, Kind, Status};

use super::arena::{Arena, Call, Pace, Setting, Target, call_at};
use super::attack::Act;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::generator::LoadOutcome;
use crate::bench::scenarios::ledger::Transport;
use crate::bench::scenarios::ledger::server::LedgerServer;

/// The ledger code of all accounts.
const LEDGER: u32 = 700;
/// Requests of one connection whose answers nobody reads.
const UNREAD: u64 = 16;

struct Port {
    server: LedgerServer,
    target: Target,
    pace: Pace,
    /// Transfers so far; no number is used twice.
    calls: u64,
    call: Call,
}

pub(super) fn start(setting: &Setting<'_>) -> Result<Box<dyn Arena>> {
    let (context, placement, dir) = (setting.context, &setting.run_dir.placement, &setting.dir);
    std::fs::create_dir_all(dir).map_err(BenchError::io(dir))?;
    let server = LedgerServer::start(context, placement, dir, Transport::Tcp)?;
    let failed = |reason: String| BenchError::set_up("prepare the ledger", reason);
    let address = server.url.trim_start_matches("tcp://").parse();
    let address = address.map_err(|_| failed(format!("no address: {}", server.url)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(error.to_string()))?;
    runtime.block_on(fill(&server.url)).map_err(failed)?;
    let url: Arc<str> = server.url.as_str().into();
    let call: Call = Arc::new(move |number| {
        let url = Arc::clone(&url);
        Box::pin(async move {
            let ledger = connect(&url).await.map_err(|error| error.to_string())?;
            transfer(&*ledger, vec![one(u128::from(number) + (1 << 32))]).await
        })
    });
    let target = Target::new((server.pid(), address), acts());
    Ok(Box::new(Port { server, target, pace: setting.pace(), calls: 0, call }))
}

fn one(id: u128) -> Transfer {
    Transfer {
        id,
        debit_account_id: 1,
        credit_account_id: 2,
        amount: 1,
        ledger: LEDGER,
        code: 1,
        ..Transfer::default()
    }
}

async fn transfer(ledger: &dyn Ledger, transfers: Vec<Transfer>) -> Result<(), String> {
    let results = ledger.create_transfers(transfers).await.map_err(|error| error.to_string())?;
    match results.iter().find(|result| result.status != CreateTransferStatus::Created) {
        None => Ok(()),
        Some(result) => Err(result.status.name().to_owned()),
    }
}

/// Opens two accounts, and makes as many transfers as one answer holds.
async fn fill(url: &str) -> Result<(), String> {
    let ledger = connect(url).await.map_err(|error| error.to_string())?;
    let account = |id| Account { id, ledger: LEDGER, code: 1, ..Account::default() };
    let opened = ledger.create_accounts(vec![account(1), account(2)]).await;
    let opened = opened.map_err(|error| error.to_string())?;
    if let Some(result) = opened.iter().find(|result| !result.status.stands()) {
        return Err(format!("an account was refused: {}", result.status));
    }
    transfer(&*ledger, (1..=BATCH_EVENTS_MAX as u128).map(one).collect()).await
}

fn acts() -> Vec<(&'static str, Act)> {
    let frame = |kind, number, body: &[u8]| {
        [&Header::new(kind, Status::Done, number, body).to_bytes()[..], body].concat()
    };
    let hello = frame(Kind::Hello, 0, &Hello::of_client().to_bytes());
    let size = u32::try_from(BODY_BYTES_MAX).expect("about a million");
    let announced = Header { size, ..Header::new(Kind::CreateTransfers, Status::Done, 1, &[]) };
    let mut filter = Vec::new();
    let limit = u32::try_from(BATCH_EVENTS_MAX).expect("a few thousand");
    push_all(&mut filter, &[QueryFilter { ledger: LEDGER, limit, ..QueryFilter::default() }]);
    let queries = (1..=UNREAD).map(|number| frame(Kind::QueryTransfers, number, &filter));
    let queries = std::iter::once(hello.clone()).chain(queries).collect::<Vec<_>>().concat();
    let large = [&hello[..], &announced.to_bytes()].concat();
    vec![
        ("large-frames", Act::Waits(vec![large.into()])),
        ("silent-clients", Act::Waits(Vec::new())),
        ("unread-transfers", Act::Ignores(vec![queries.into()])),
    ]
}

impl Arena for Port {
    fn target(&self) -> &Target {
        &self.target
    }

    fn load(&mut self) -> Result<LoadOutcome> {
        let first = self.calls;
        self.calls += 1 << 32;
        call_at(&self.pace, first, &self.call)
    }

    fn still_runs(&mut self) -> Result<()> {
        self.server.still_runs()
    }

    fn finish(self: Box<Self>) -> Result<bool> {
        self.server.stop()?;
        Ok(true)
    }
}
