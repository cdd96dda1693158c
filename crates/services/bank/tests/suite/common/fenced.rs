//! A view of a shared store that a killed process can no longer write to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use batzen_store::memory::MemoryBackend;
use batzen_store::{Backend, ChangeSet, CommitOutcome, RawRow, StoreError, TableDef};
use tokio::sync::Notify;

type Result<T> = std::result::Result<T, StoreError>;

/// When a process is killed by its own commits: at which number, and before or after the commit is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KillAt {
    pub commit: usize,
    pub is_durable: bool,
}

/// One process's view of the store.
pub(crate) struct Fenced {
    pub inner: Arc<MemoryBackend>,
    /// Held during a commit or a look-up.
    pub alive: Arc<Mutex<bool>>,
    pub commits: AtomicUsize,
    pub kill: Option<KillAt>,
    pub killed: Arc<Notify>,
}

/// A thread of a killed process blocks forever.
fn dead() -> ! {
    loop {
        std::thread::park();
    }
}

impl Backend for Fenced {
    batzen_store::delegate_reads!(self, *self.inner, except get_many);

    fn get_many(&self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<Vec<Option<RawRow>>> {
        // It must not see the next process's writes either: a rule would find unexpected rows.
        let alive = self.alive.lock().unwrap();
        if !*alive {
            drop(alive);
            dead();
        }
        self.inner.get_many(table, keys)
    }
    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        let mut alive = self.alive.lock().unwrap();
        if !*alive {
            drop(alive);
            dead();
        }
        let number = self.commits.fetch_add(1, Ordering::SeqCst);
        let Some(kill) = self.kill.filter(|kill| kill.commit == number) else {
            return self.inner.commit(changes);
        };
        if kill.is_durable {
            assert_eq!(self.inner.commit(changes)?, CommitOutcome::Committed);
        }
        *alive = false;
        drop(alive);
        self.killed.notify_one();
        dead()
    }
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}
