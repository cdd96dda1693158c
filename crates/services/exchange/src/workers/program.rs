//! The life of a worker program: its store, if it has one, and the pages that show its metrics.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use batzen_http::{Drain, OwnNames};
use batzen_metrics::Page;
use batzen_service::{App, Monitor, OwnPages, PagesAddress, Readiness};
use batzen_store::StoreError;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::standing;
use crate::core::Core;
use crate::dashboard::DASHBOARD;

/// The service to which the metrics belong.
const SERVICE: &str = "exchange";

/// A worker program that works on the database.
pub struct Program {
    core: Arc<Core>,
    shown: Arc<Shown>,
    pages: Option<OwnPages>,
    follower: JoinHandle<()>,
}

impl Program {
    /// A program over an open store, with pages at this address, if there is one. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(core: Core, address: Option<&PagesAddress>) -> io::Result<Self> {
        let core = Arc::new(core);
        let monitor = Monitor::new(SERVICE, &[], &DASHBOARD, None).in_currency(core.config.currency);
        let shown = Arc::new(Shown { core: Arc::clone(&core), monitor });
        let pages = OwnPages::serve(address, &shown, &core.config.hostnames, false, &core.drain).await?;
        let follower = tokio::spawn(standing::follow(Arc::clone(&core)));
        Ok(Self { core, shown, pages, follower })
    }

    /// The parts of an exchange that its worker needs.
    #[must_use]
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The URL of its pages, if they have an address.
    #[must_use]
    pub fn metrics_url(&self) -> Option<&str> {
        self.pages.as_ref().map(OwnPages::url)
    }

    /// Ends it: makes everything accepted durable and closes the store.
    ///
    /// # Errors
    /// When the disk fails; all commits are durable regardless.
    pub async fn end(self) -> Result<(), StoreError> {
        let Self { core, shown, pages, follower } = self;
        core.drain.trigger();
        batzen_service::ended(pages.map(OwnPages::into_task)).await;
        follower.abort();
        // It has ended in any case.
        let _ = follower.await;
        shown.monitor.idle().await;
        let (lane, store) = (core.lane.clone(), core.store.clone());
        drop((core, shown));
        let close = move || {
            lane.close();
            store.close()
        };
        tokio::task::spawn_blocking(close).await.expect("closing the store does not panic")
    }
}

struct Shown {
    core: Arc<Core>,
    monitor: Monitor,
}

impl App for Shown {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn ready(&self) -> impl Future<Output = Readiness> + Send {
        self.monitor.check(&self.core.store, self.core.now())
    }

    fn write_metrics(&self, page: &mut Page) {
        self.core.write_metrics(page);
    }
}

/// The pages of a worker program whose work the service does: the service counts it.
pub struct LinkedPages {
    pages: Option<OwnPages>,
    drain: Drain,
}

impl LinkedPages {
    /// Pages at this address, if there is one, of a program that uses the service at a socket. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(socket: &Path, address: Option<&PagesAddress>) -> io::Result<Self> {
        let monitor = Monitor::new(SERVICE, &[], &DASHBOARD, None);
        let (linked, drain) = (Arc::new(Linked { socket: socket.to_owned(), monitor }), Drain::new());
        let pages = OwnPages::serve(address, &linked, &OwnNames::default(), false, &drain).await?;
        Ok(Self { pages, drain })
    }

    /// Their URL, if they have an address.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.pages.as_ref().map(OwnPages::url)
    }

    /// Ends them.
    pub async fn end(self) {
        self.drain.trigger();
        batzen_service::ended(self.pages.map(OwnPages::into_task)).await;
    }
}

struct Linked {
    socket: PathBuf,
    monitor: Monitor,
}

impl App for Linked {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    async fn ready(&self) -> Readiness {
        Readiness::new().check_within(SERVICE, UnixStream::connect(&self.socket)).await
    }

    fn write_metrics(&self, _: &mut Page) {}
}
