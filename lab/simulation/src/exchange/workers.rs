//! The real workers: each runs until it is idle, again and again, over the simulated network.

use std::sync::Arc;

use batzen_crypto::{HashCode, Wtid};
use batzen_engine::SubmitError;
use batzen_exchange::workers::{Progress, WorkerError, aggregator, closer, expire, transfer, wirewatch};
use batzen_protocol::api::bank::{IncomingHistory, TransferRequest};
use batzen_wallet::core::http::{Context as HttpContext, HttpRequest, HttpResponse};
use tokio::sync::oneshot;

use super::{Exchange, Running};
use crate::host::{Step, Stop};
use crate::message::{Body, Context, Message, ProcessId, Timer};
use crate::outside::{Sent, Sleep};
use crate::random::Random;
use crate::service::{Call, sent_to};
use crate::swarm::{Bug, SECOND};

/// Time that a worker waits for the bank.
const PATIENCE: u64 = 30 * SECOND;

/// A worker's run.
pub(super) struct Run {
    timer: Timer,
    work: Call<Result<Progress, WorkerError>>,
}

/// A request to the bank, and the task that waits for its answer.
pub(super) struct Asked {
    request: HttpRequest,
    answer: Option<oneshot::Sender<HttpResponse>>,
}

fn transfer_of(request: &HttpRequest) -> Option<TransferRequest> {
    serde_json::from_slice(request.body.as_deref()?).ok()
}

/// Gives a transfer request another uid, which is a bug.
pub(super) fn with_new_uid(request: &mut HttpRequest, random: &mut Random) {
    let mut transfer = transfer_of(request).expect("a transfer");
    transfer.request_uid = HashCode::from_bytes(random.bytes());
    request.body = serde_json::to_vec(&transfer).ok();
}

impl Exchange {
    /// Starts a run of a worker, unless the last one has not ended.
    pub(super) fn work(&mut self, context: &mut Context, timer: Timer) -> Step {
        let gap = context.swarm.worker_gap;
        let gap = if context.is_active { context.random.gap(gap) } else { gap.max(1_200 * SECOND) };
        context.wake(ProcessId::Exchange, self.host.incarnation, gap, timer);
        let Some(Running { service, runs, .. }) = &mut self.running else { return Ok(()) };
        if runs.iter().any(|run| run.timer == timer) || self.sleeps && timer == Timer::Wirewatch {
            return Ok(());
        }
        let core = Arc::clone(&service.app.core);
        runs.push(Run {
            timer,
            work: Call::new(match timer {
                Timer::Wirewatch => Box::pin(async move { wirewatch::run_until_idle(&core).await }),
                Timer::Aggregate => Box::pin(async move { aggregator::run_until_idle(&core).await }),
                Timer::Close => Box::pin(async move { closer::run_until_idle(&core).await }),
                Timer::Transfer => Box::pin(async move { transfer::run_until_idle(&core).await }),
                Timer::Expire => Box::pin(async move { expire::run_until_idle(&core).await }),
                other => return Err(Stop::wrong(format!("the exchange has no timer {other:?}"))),
            }),
        });
        self.go_on(context)
    }

    /// Sends requests of workers to the bank.
    pub(super) fn send(&mut self, context: &mut Context, sent: Vec<Sent>) {
        for (request, answer) in sent {
            let mut request = sent_to(HttpContext::Bank, request);
            if let Some(transfer) = transfer_of(&request) {
                if !self.asked_transfers.insert(transfer.wtid) {
                    context.marks.meet("transfer.repeated");
                }
                if context.has(Bug::NewUidForEachAttempt) {
                    with_new_uid(&mut request, &mut context.random);
                }
            }
            self.ask(context, request, Some(answer));
        }
    }

    pub(super) fn ask(
        &mut self,
        context: &mut Context,
        request: HttpRequest,
        answer: Option<oneshot::Sender<HttpResponse>>,
    ) {
        let call = context.call();
        self.asked.insert(call, Asked { request: request.clone(), answer });
        let body = Body::Ask(std::rc::Rc::new(request));
        context.send(Message { from: ProcessId::Exchange, to: ProcessId::Bank, call, body });
        context.wake(ProcessId::Exchange, self.host.incarnation, PATIENCE, Timer::GiveUp(call));
    }

    /// Sets timers for the sleeps of tasks.
    pub(super) fn sleep(&mut self, context: &mut Context, sleeps: Vec<Sleep>) {
        for (end, sleeper) in sleeps {
            self.next_sleep += 1;
            self.sleepers.insert(self.next_sleep, sleeper);
            let after = end.saturating_sub(context.now);
            let timer = Timer::Slept(self.next_sleep);
            context.wake(ProcessId::Exchange, self.host.incarnation, after, timer);
        }
    }

    /// A sleep ends.
    pub(super) fn awake(&mut self, context: &mut Context, sleep: u64) -> Step {
        // The task may have ended its sleep itself.
        match self.sleepers.remove(&sleep).map(|sleeper| sleeper.send(())) {
            Some(Ok(())) => self.go_on(context),
            Some(Err(())) | None => Ok(()),
        }
    }

    /// The bank has not answered in time. A late answer is noted, but no task waits for it.
    pub(super) fn give_up(&mut self, context: &mut Context, call: u64) -> Step {
        let Some(asked) = self.asked.get_mut(&call) else { return Ok(()) };
        if asked.answer.take().is_none() {
            return Ok(());
        }
        if asked.request.body.is_none() {
            context.marks.meet("history.repeated");
            self.lose_wakeup(context);
        }
        self.go_on(context)
    }

    fn lose_wakeup(&mut self, context: &Context) {
        if !context.has(Bug::LostWakeup) {
            return;
        }
        self.sleeps = true;
        if let Some(running) = &mut self.running {
            running.runs.retain(|run| run.timer != Timer::Wirewatch);
        }
    }

    /// The bank answers.
    pub(super) fn receive(&mut self, context: &mut Context, call: u64, response: &HttpResponse) -> Step {
        let Some(Asked { request, answer }) = self.asked.remove(&call) else { return Ok(()) };
        let mut response = response.clone();
        match transfer_of(&request) {
            Some(transfer) if response.status == 200 => {
                self.acknowledged.push((request.clone(), response.clone()));
                self.last_transfer = Some(request);
                self.count_answer(context, transfer.wtid);
            }
            Some(_) => {}
            None if answer.is_some() => self.look_through(context, &mut response),
            None => {}
        }
        match answer.map(|answer| answer.send(response)) {
            Some(Ok(())) => self.go_on(context),
            Some(Err(_)) | None => Ok(()),
        }
    }

    fn count_answer(&mut self, context: &mut Context, wtid: Wtid) {
        let answers = self.transfers_answered.entry(wtid).or_default();
        *answers += 1;
        if *answers > 1 {
            context.marks.meet("transfer.two_answers");
        }
    }

    /// Marks a page of the bank's history, and plants bugs into it.
    fn look_through(&mut self, context: &mut Context, response: &mut HttpResponse) {
        if response.status >= 400 {
            self.lose_wakeup(context);
        }
        let Ok(mut page) = serde_json::from_slice::<IncomingHistory>(&response.body) else { return };
        let rows = &mut page.incoming_transactions;
        if rows.len() as u64 == context.swarm.page_rows {
            context.marks.meet("history.page_full");
        }
        if context.has(Bug::SkipsARow) && rows.len() > 1 {
            rows.remove(0);
            response.body = serde_json::to_vec(&page).expect("protocol bodies have a JSON form");
        }
    }
}

impl Run {
    /// Continues, and returns the result once the worker is idle.
    pub(super) fn poll(&mut self) -> Option<Result<Progress, WorkerError>> {
        self.work.poll()
    }

    /// Checks how it has ended: honest banks give a worker nothing to set aside, and rules never refuse its commands.
    pub(super) fn judge(
        self,
        exchange: &Exchange,
        context: &mut Context,
        end: Result<Progress, WorkerError>,
    ) -> Step {
        let timer = self.timer;
        match end {
            Ok(Progress { set_aside: 0, .. }) => Ok(()),
            Ok(progress) => Err(Stop::wrong(format!("{timer:?} sets items aside: {progress:?}"))),
            Err(WorkerError::Store(error)) => exchange.host.note_failure(context, &error),
            Err(WorkerError::Submit(SubmitError::Store(error))) => {
                exchange.host.note_failure(context, &error)
            }
            Err(error @ WorkerError::Bank { .. }) => {
                context.say(&format!("{timer:?}: {error}"));
                Ok(())
            }
            Err(error) => Err(Stop::wrong(format!("{timer:?}: {error}"))),
        }
    }
}
