//! Participants, accounts, limits, callback addresses and settlement models.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{
    AccountKind, EndpointKey, EndpointRow, Endpoints, HUB, ModelKey, ModelRow, Models, ParticipantKey,
    ParticipantRow, Participants, SwitchAccountKey, SwitchAccountRow, SwitchAccounts,
};

use super::{
    Consequences, Decided, Refusal, SwitchRules, change_state, conflict, hub_settlement, plan_state,
    position, state_row,
};

/// The most participants.
pub const PARTICIPANTS_MAX: u32 = 4096;

const ALARM_PERCENTAGE: u8 = 80;

const PARTICIPANT_ACCOUNTS: [AccountKind; 3] =
    [AccountKind::Position, AccountKind::Settlement, AccountKind::Grant];
const HUB_ACCOUNTS: [AccountKind; 2] =
    [AccountKind::HubReconciliation, AccountKind::HubMultilateralSettlement];

/// The accounts of a participant (or the hub) in a currency.
#[must_use]
pub fn account_kinds(participant: u32) -> &'static [AccountKind] {
    if participant == HUB { &HUB_ACCOUNTS } else { &PARTICIPANT_ACCOUNTS }
}

fn plan_participant(name: &str, plan: &mut Plan) {
    plan.row::<Participants>(ParticipantKey::new(name));
}

fn participant(rows: &WorkingSet, name: &str, number: u32) -> Result<ParticipantRow, Refusal> {
    let row = rows.get::<Participants>(&ParticipantKey::new(name)).ok_or(Refusal::Unknown("participant"))?;
    if row.number == number { Ok(row.clone()) } else { Err(Refusal::Overtaken) }
}

fn account(rows: &WorkingSet, key: &SwitchAccountKey) -> Result<SwitchAccountRow, Refusal> {
    rows.get::<SwitchAccounts>(key).cloned().ok_or(Refusal::Unknown("account"))
}

/// Opens the accounts of a participant in a currency, and creates the participant if it is new. Without a name, opens
/// those of the hub. The number of the consequences is the participant's.
#[derive(Clone, Debug)]
pub struct OpenAccounts {
    /// The participant; `None`: the hub.
    pub name: Option<String>,
    /// The participant's number; for a new one, the next.
    pub number: u32,
    /// The currency.
    pub currency: u32,
}

impl Command<SwitchRules> for OpenAccounts {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_state(plan);
        if let Some(name) = &self.name {
            plan_participant(name, plan);
        }
        for kind in account_kinds(self.number) {
            plan.row::<SwitchAccounts>(SwitchAccountKey::new(self.number, self.currency, *kind));
        }
        plan.row::<SwitchAccounts>(hub_settlement(self.currency));
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        if let Some(name) = &self.name {
            self.require_participant(rows, name, now)?;
        }
        for kind in account_kinds(self.number) {
            let key = SwitchAccountKey::new(self.number, self.currency, *kind);
            if rows.get::<SwitchAccounts>(&key).is_some() {
                return Err(conflict("these accounts exist"));
            }
            let id = change_state(rows, |state| {
                let id = state.next_account;
                state.next_account = id.checked_add(1).expect("fewer than 2^32 accounts");
                id
            });
            let row = SwitchAccountRow {
                id,
                active: true,
                ndc: None,
                alarm_percentage: ALARM_PERCENTAGE,
                over_limit: 0,
                gross: false,
            };
            rows.insert::<SwitchAccounts>(&key, row);
        }
        Ok(Consequences::of_number(self.number))
    }
}

impl OpenAccounts {
    fn require_participant(&self, rows: &mut WorkingSet, name: &str, now: Timestamp) -> Result<(), Refusal> {
        let number = self.number;
        if rows.get::<SwitchAccounts>(&hub_settlement(self.currency)).is_none() {
            return Err(conflict("the hub has no accounts of this currency"));
        }
        let key = ParticipantKey::new(name);
        match rows.get::<Participants>(&key) {
            Some(row) if row.number == number => {}
            None if state_row(rows).next_participant == number => {
                if number > PARTICIPANTS_MAX {
                    return Err(conflict("there are too many participants"));
                }
                change_state(rows, |state| state.next_participant += 1);
                let row = ParticipantRow { number, name: name.to_owned(), active: false, created: now };
                rows.insert::<Participants>(&key, row);
            }
            _ => return Err(Refusal::Overtaken),
        }
        Ok(())
    }
}

/// Enables or disables a participant. The number of the consequences is the participant's.
#[derive(Clone, Debug)]
pub struct ActivateParticipant {
    /// The participant.
    pub name: String,
    /// Enabled or disabled.
    pub active: bool,
}

impl Command<SwitchRules> for ActivateParticipant {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_participant(&self.name, plan);
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        let key = ParticipantKey::new(&self.name);
        let mut row = rows.get::<Participants>(&key).cloned().ok_or(Refusal::Unknown("participant"))?;
        let number = row.number;
        row.active = self.active;
        rows.update::<Participants>(&key, row);
        Ok(Consequences::of_number(number))
    }
}

/// Enables or disables an account. The number of the consequences is the participant's.
#[derive(Clone, Debug)]
pub struct ActivateAccount {
    /// The account.
    pub key: SwitchAccountKey,
    /// Enabled or disabled.
    pub active: bool,
}

impl Command<SwitchRules> for ActivateAccount {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan.row::<SwitchAccounts>(self.key.clone());
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        let mut row = account(rows, &self.key)?;
        row.active = self.active;
        rows.update::<SwitchAccounts>(&self.key, row);
        Ok(Consequences::of_number(self.key.participant))
    }
}

/// Sets the net debit cap. The number of the consequences is the participant's.
#[derive(Clone, Debug)]
pub struct SetLimit {
    /// The participant.
    pub name: String,
    /// The participant's number.
    pub number: u32,
    /// The currency.
    pub currency: u32,
    /// The cap, in ten-thousandths.
    pub ndc: u128,
    /// The percentage of the limit that triggers an alarm; `None`: unchanged.
    pub alarm_percentage: Option<u8>,
    /// Whether it is the first limit, which activates the participant.
    pub initial: bool,
}

impl Command<SwitchRules> for SetLimit {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_participant(&self.name, plan);
        plan.row::<SwitchAccounts>(position(self.number, self.currency));
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        let mut owner = participant(rows, &self.name, self.number)?;
        let key = position(self.number, self.currency);
        let mut row = account(rows, &key)?;
        match (self.initial, row.ndc) {
            (true, Some(_)) => return Err(conflict("the limit has been set before")),
            (false, None) => return Err(conflict("the limit has not been set")),
            _ => {}
        }
        row.ndc = Some(self.ndc);
        row.alarm_percentage = self.alarm_percentage.unwrap_or(row.alarm_percentage);
        rows.update::<SwitchAccounts>(&key, row);
        if self.initial {
            owner.active = true;
            rows.update::<Participants>(&ParticipantKey::new(&self.name), owner);
        }
        Ok(Consequences::of_number(self.number))
    }
}

/// Sets a callback address. The number of the consequences is the participant's.
#[derive(Clone, Debug)]
pub struct SetEndpoint {
    /// The participant.
    pub name: String,
    /// The participant's number, and the type of messages sent there.
    pub key: EndpointKey,
    /// The URL.
    pub url: String,
}

impl Command<SwitchRules> for SetEndpoint {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan_participant(&self.name, plan);
        plan.row::<Endpoints>(self.key.clone());
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        participant(rows, &self.name, self.key.participant)?;
        rows.put::<Endpoints>(&self.key, EndpointRow { url: self.url.clone() });
        Ok(Consequences::of_number(self.key.participant))
    }
}

/// Sets a settlement model.
#[derive(Clone, Debug)]
pub struct SetModel {
    /// Its name.
    pub key: ModelKey,
    /// Its row.
    pub row: ModelRow,
}

impl Command<SwitchRules> for SetModel {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan.row::<Models>(self.key.clone());
        plan.row::<SwitchAccounts>(hub_settlement(self.row.currency));
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        let Self { key, row: model } = self;
        let hub = hub_settlement(model.currency);
        match rows.get::<SwitchAccounts>(&hub).cloned() {
            Some(mut row) => {
                row.gross = model.gross && model.active;
                rows.update::<SwitchAccounts>(&hub, row);
            }
            None if model.currency != 0 => return Err(Refusal::Unknown("hub account of the currency")),
            None if model.gross => return Err(conflict("a gross model has a currency")),
            None => {}
        }
        rows.put::<Models>(key, model.clone());
        Ok(Consequences::default())
    }
}
