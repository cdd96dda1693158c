//! The parties that participants register as their customers for account lookups. A party (a phone number, an
//! account) is stored as a hash of its identifier, so that the table is not a list of identifiers.

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{Parties, PartyKey, PartyRow};

use super::Context;

/// The most parties in one command.
pub const PARTIES_MAX: usize = 1000;

/// Commands about parties. The outcome gives the places of the refused ones.
#[derive(Clone, Debug)]
pub enum PartyCommand {
    /// Registers customers of a participant. A party registered by another participant is refused; repeating
    /// it is harmless.
    Register {
        /// The parties.
        parties: Vec<PartyKey>,
        /// The participant.
        participant: u32,
    },
    /// Removes a customer of the participant. A party that is not its customer is refused.
    Remove {
        /// The party.
        party: PartyKey,
        /// The participant.
        participant: u32,
    },
}

pub(super) fn plan(command: &PartyCommand, plan: &mut Plan) {
    match command {
        PartyCommand::Register { parties, .. } => {
            parties.iter().for_each(|party| plan.row::<Parties>(party.clone()));
        }
        PartyCommand::Remove { party, .. } => plan.row::<Parties>(party.clone()),
    }
}

pub(super) fn execute(rows: &mut WorkingSet, command: &PartyCommand, cx: &mut Context) {
    match command {
        PartyCommand::Register { parties, participant } => {
            assert!(parties.len() <= PARTIES_MAX, "commands are bounded");
            for (place, party) in parties.iter().enumerate() {
                match rows.get::<Parties>(party) {
                    None => rows.insert::<Parties>(party, new_row(*participant, cx.now)),
                    Some(row) if row.participant == *participant => {}
                    Some(_) => cx.outcome.refused.push(u16::try_from(place).expect("bounded")),
                }
            }
        }
        PartyCommand::Remove { party, participant } => match rows.get::<Parties>(party) {
            Some(row) if row.participant == *participant => rows.delete::<Parties>(party),
            _ => cx.outcome.refused.push(0),
        },
    }
}

fn new_row(participant: u32, now: Timestamp) -> PartyRow {
    PartyRow { participant, registered: now }
}
