//! Payments between people: a customer sends or requests money and shows the URI on a board, where another one finds it.

use batzen_protocol::{Duration, Timestamp};
use batzen_wallet::core::CoreError;
use batzen_wallet::core::OpId;
use batzen_wallet::core::http::HttpResponse;
use batzen_wallet::core::purse::lookup::{PeerContractTerms, PeerPayment, PeerUri};
use batzen_wallet::core::purse::{self, Direction, IncomeStage, PayStage, income, payment};
use batzen_wallet::core::state::OpKind;

use super::{Customer, Purpose, seconds};
use crate::host::Step;
use crate::keys::{EXCHANGE_URL, cents, currency};
use crate::message::{Context, ProcessId};

/// A look at a URI of the board.
pub(super) enum Lookup {
    /// The contract is asked for.
    Contract(PeerUri),
    /// The purse's status is asked for.
    Status(Box<PeerContractTerms>),
}

impl Customer {
    /// Sends or requests money, or takes the last such payment back.
    pub(super) fn deal(&mut self, context: &mut Context) -> Step {
        match context.random.below(10) {
            0 => self.take_back(context),
            1..6 => self.offer(context, Direction::Push),
            _ => self.offer(context, Direction::Pull),
        }
    }

    fn offer(&mut self, context: &mut Context, direction: Direction) -> Step {
        let now = self.now(context);
        let amount = cents(context.random.between(10, 250)).of(currency());
        let longest = *context.random.pick(&[900, 3_600, 21_600]);
        let life = context.random.between(300, longest);
        let end = now.saturating_add(Duration::from_secs(life));
        let terms = ("", rounded(end), 0);
        let entropy = &mut self.entropy;
        let begun = match direction {
            Direction::Push => payment::start_send(&self.state, EXCHANGE_URL, amount, terms, now, entropy),
            Direction::Pull => income::start_request(&self.state, EXCHANGE_URL, amount, terms, now, entropy),
        };
        let Some(id) = self.begin(context, begun)? else { return Ok(()) };
        let contract_priv = match self.state.operation(id).map(|operation| &operation.kind) {
            Ok(OpKind::PursePayment(record)) => record.contract_priv.clone(),
            Ok(OpKind::PurseIncome(record)) => record.contract_priv.clone(),
            _ => return Ok(()),
        };
        context.board.push(purse::uri(direction, EXCHANGE_URL, &contract_priv));
        Ok(())
    }

    /// Takes back sent money that nobody has accepted, or withdraws a request that nobody has paid.
    fn take_back(&mut self, context: &mut Context) -> Step {
        let is_waiting = |kind: &OpKind| match kind {
            OpKind::PursePayment(record) => record.stage == PayStage::Open,
            OpKind::PurseIncome(record) => record.stage == IncomeStage::Await,
            _ => false,
        };
        let mut open = self.state.open_operations();
        let Some(id) = open.find(|operation| is_waiting(&operation.kind)).map(|operation| operation.id)
        else {
            return Ok(());
        };
        drop(open);
        let cancelled = payment::cancel(&self.state, id).or_else(|_| income::cancel(&self.state, id));
        self.begin(context, cancelled.map(|changes| (id, changes))).map(|_| ())
    }

    /// Looks at a URI of the board.
    pub(super) fn look_at_board(&mut self, context: &mut Context) {
        if context.board.is_empty() || self.lookup.is_some() {
            return;
        }
        let uri: &String = context.random.pick(&context.board);
        let uri = PeerUri::parse(uri).expect("a wallet showed it");
        let request = uri.contract_request();
        self.lookup = Some(Lookup::Contract(uri));
        self.ask(context, ProcessId::Exchange, request, Purpose::Lookup);
    }

    /// The exchange answers what a URI is about: accepts the money, or pays the request.
    pub(super) fn look_further(&mut self, context: &mut Context, response: &HttpResponse) -> Step {
        let Some(lookup) = self.lookup.take().filter(|_| !response.is_transient()) else { return Ok(()) };
        let exchange = self.state.exchange(EXCHANGE_URL).map_err(|error| self.wrong(&error))?;
        let now = self.now(context);
        let found = match lookup {
            Lookup::Contract(uri) => match uri.read_contract(exchange, response) {
                Ok(contract) => {
                    let request = contract.status_request();
                    self.lookup = Some(Lookup::Status(Box::new(contract)));
                    self.ask(context, ProcessId::Exchange, request, Purpose::Lookup);
                    return Ok(());
                }
                Err(error) => Err(error),
            },
            Lookup::Status(contract) => contract.read_status(exchange, response, now),
        };
        match found {
            Ok(payment) => self.accept(context, &payment, now),
            Err(error) if error.is_false_statement() => Err(self.wrong(&error)),
            Err(error) => {
                context.say(&format!("{:?} is not interested: {error}", self.place()));
                Ok(())
            }
        }
    }

    fn accept(&mut self, context: &mut Context, peer: &PeerPayment, now: Timestamp) -> Step {
        if peer.known(&self.state).is_some() {
            return Ok(());
        }
        let entropy = &mut self.entropy;
        let begun: Result<(OpId, Vec<_>), CoreError> = match peer.direction {
            Direction::Push => income::start_accept(&self.state, peer, now, entropy),
            Direction::Pull => payment::start_pay(&self.state, peer, now, entropy),
        };
        if self.begin(context, begun)?.is_some() { self.go_on(context) } else { Ok(()) }
    }
}

fn rounded(time: Timestamp) -> Timestamp {
    seconds(time.as_micros())
}
