//! Web hooks, templates and further access tokens, and forgetting all that a purged shop had.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_store::Table;
use batzen_tables::merchant::{
    AccessTokenKey, AccessTokenRow, AccessTokens, AccountKycKey, AccountKycs, InstanceKey, Instances,
    PendingWebhookKey, PendingWebhookRow, PendingWebhooks, ProductKey, ProductLockKey, ProductLocks,
    Products, TemplateKey, TemplateRow, Templates, TipKey, TipPickupKey, TipPickups, TipReserveKey,
    TipReserves, Tips, TransferKey, Transfers, WebhookKey, WebhookRow, Webhooks,
};

use super::{Decided, MerchantRules, Refusal};

/// The maximum number of web hooks of an instance.
pub(crate) const HOOKS_MAX: usize = 32;
/// The maximum number of templates of an instance.
pub(crate) const TEMPLATES_MAX: usize = 1_024;
/// The maximum number of further tokens of an instance.
pub(crate) const TOKENS_MAX: usize = 256;

/// A change to a named object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit<R> {
    /// It is added. Refused if another one has this name.
    Create(R),
    /// It is changed. Refused if there is none.
    Change(R),
    /// It is removed. Refused if there is none.
    Delete,
}

/// Edits a web hook.
#[derive(Clone, Debug)]
pub(crate) struct EditWebhook {
    /// The hook.
    pub(crate) key: WebhookKey,
    /// The change to it.
    pub(crate) edit: Edit<WebhookRow>,
}

impl Command<MerchantRules> for EditWebhook {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_edit::<Webhooks>(Webhooks::BY_INSTANCE, &self.key, &self.key.instance, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        edit::<Webhooks>(rows, (Webhooks::BY_INSTANCE, HOOKS_MAX), &self.key, &self.key.instance, &self.edit)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct EditTemplate {
    pub(crate) key: TemplateKey,
    /// The change to it.
    pub(crate) edit: Edit<TemplateRow>,
}

impl Command<MerchantRules> for EditTemplate {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_edit::<Templates>(Templates::BY_INSTANCE, &self.key, &self.key.instance, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        edit::<Templates>(
            rows,
            (Templates::BY_INSTANCE, TEMPLATES_MAX),
            &self.key,
            &self.key.instance,
            &self.edit,
        )
    }
}

/// Edits an access token. A new one takes the place of those that have ended.
#[derive(Clone, Debug)]
pub(crate) struct EditToken {
    pub(crate) key: AccessTokenKey,
    /// The change to it.
    pub(crate) edit: Edit<AccessTokenRow>,
}

impl Command<MerchantRules> for EditToken {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_edit::<AccessTokens>(AccessTokens::BY_INSTANCE, &self.key, &self.key.instance, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        if matches!(self.edit, Edit::Create(_)) {
            let all = rows.group::<AccessTokens>(AccessTokens::BY_INSTANCE, &self.key.instance);
            let ended = all.into_iter().filter(|(_, row)| row.expires <= now);
            let ended: Vec<AccessTokenKey> = ended.map(|(key, _)| key.clone()).collect();
            ended.iter().for_each(|key| rows.delete::<AccessTokens>(key));
        }
        edit::<AccessTokens>(
            rows,
            (AccessTokens::BY_INSTANCE, TOKENS_MAX),
            &self.key,
            &self.key.instance,
            &self.edit,
        )
    }
}

/// Takes a request that is due, so that nobody else sends it for a while.
#[derive(Clone, Debug)]
pub(crate) struct TakeWebhook {
    /// The request.
    pub(crate) key: PendingWebhookKey,
    /// The hook that it belongs to, as read before: it never changes.
    pub(crate) hook: WebhookKey,
    /// When somebody else may send it.
    pub(crate) until: Timestamp,
}

impl Command<MerchantRules> for TakeWebhook {
    /// The request, with the hook's address of now. None: the shop has deleted the hook, so that nothing is sent any more.
    type Answer = Option<PendingWebhookRow>;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<PendingWebhooks>(self.key.clone());
        plan.row::<Webhooks>(self.hook.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Decided<Self::Answer> {
        let known = rows.get::<PendingWebhooks>(&self.key).cloned();
        let due = known.filter(|row| row.next <= now).ok_or(Refusal::NameUnknown)?;
        let Some(WebhookRow { url, http_method, .. }) = rows.get::<Webhooks>(&self.hook).cloned() else {
            rows.delete::<PendingWebhooks>(&self.key);
            return Ok(None);
        };
        // Another writer may be deleting it.
        rows.depend_on::<Webhooks>(&self.hook);
        let row = PendingWebhookRow { url, http_method, next: self.until, ..due };
        rows.update::<PendingWebhooks>(&self.key, row.clone());
        Ok(Some(row))
    }
}

/// Puts off a request that is due, since its receiver does not keep up. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct DeferWebhook {
    /// The request.
    pub(crate) key: PendingWebhookKey,
    /// The time at which it is due again.
    pub(crate) until: Timestamp,
}

impl Command<MerchantRules> for DeferWebhook {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<PendingWebhooks>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        // Somebody else may have sent it meanwhile.
        if let Some(due) = rows.get::<PendingWebhooks>(&self.key).filter(|row| row.next <= now).cloned() {
            rows.update::<PendingWebhooks>(&self.key, PendingWebhookRow { next: self.until, ..due });
        }
        Ok(())
    }
}

/// Books the outcome of sending a web hook. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct FinishWebhook {
    /// The request.
    pub(crate) key: PendingWebhookKey,
    /// When it is sent again. `None`: it was sent, or is given up.
    pub(crate) again: Option<Timestamp>,
}

impl Command<MerchantRules> for FinishWebhook {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<PendingWebhooks>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let Some(known) = rows.get::<PendingWebhooks>(&self.key).cloned() else { return Ok(()) };
        match self.again {
            None => rows.delete::<PendingWebhooks>(&self.key),
            Some(next) => {
                let row = PendingWebhookRow { next, failures: known.failures.saturating_add(1), ..known };
                rows.update::<PendingWebhooks>(&self.key, row);
            }
        }
        Ok(())
    }
}

/// Forgets what a purged shop had beside orders.
#[derive(Clone, Debug, Default)]
pub(crate) struct PurgeRest {
    /// The instance.
    pub(crate) id: String,
    pub(crate) products: Vec<ProductKey>,
    /// The locks of carts on them.
    pub(crate) locks: Vec<ProductLockKey>,
    pub(crate) transfers: Vec<TransferKey>,
    /// Its accounts at exchanges.
    pub(crate) kycs: Vec<AccountKycKey>,
    pub(crate) reserves: Vec<TipReserveKey>,
    pub(crate) tips: Vec<TipKey>,
    /// The pickups of its tips by customers.
    pub(crate) pickups: Vec<TipPickupKey>,
    /// Its web hooks.
    pub(crate) webhooks: Vec<WebhookKey>,
    /// Its requests that were to be sent.
    pub(crate) pending: Vec<PendingWebhookKey>,
    pub(crate) templates: Vec<TemplateKey>,
    pub(crate) tokens: Vec<AccessTokenKey>,
}

impl Command<MerchantRules> for PurgeRest {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        fn all<T: Table>(keys: &[T::Key], plan: &mut Plan) {
            keys.iter().for_each(|key| plan.row::<T>(key.clone()));
        }
        plan.row::<Instances>(InstanceKey::new(&self.id));
        all::<Products>(&self.products, plan);
        all::<ProductLocks>(&self.locks, plan);
        all::<Transfers>(&self.transfers, plan);
        all::<AccountKycs>(&self.kycs, plan);
        all::<TipReserves>(&self.reserves, plan);
        all::<Tips>(&self.tips, plan);
        all::<TipPickups>(&self.pickups, plan);
        all::<Webhooks>(&self.webhooks, plan);
        all::<PendingWebhooks>(&self.pending, plan);
        all::<Templates>(&self.templates, plan);
        all::<AccessTokens>(&self.tokens, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        fn all<T: Table>(rows: &mut WorkingSet, keys: &[T::Key]) {
            for key in keys {
                if rows.get::<T>(key).is_some() {
                    rows.delete::<T>(key);
                }
            }
        }
        let instance = rows.get::<Instances>(&InstanceKey::new(&self.id)).ok_or(Refusal::InstanceUnknown)?;
        // A shop that still works could get new ones for ever.
        if instance.merchant_priv.is_some() {
            return Err(Refusal::OrdersLeft);
        }
        all::<Products>(rows, &self.products);
        all::<ProductLocks>(rows, &self.locks);
        all::<Transfers>(rows, &self.transfers);
        all::<AccountKycs>(rows, &self.kycs);
        all::<TipReserves>(rows, &self.reserves);
        all::<Tips>(rows, &self.tips);
        all::<TipPickups>(rows, &self.pickups);
        all::<Webhooks>(rows, &self.webhooks);
        all::<PendingWebhooks>(rows, &self.pending);
        all::<Templates>(rows, &self.templates);
        all::<AccessTokens>(rows, &self.tokens);
        Ok(())
    }
}

impl PurgeRest {
    /// Returns whether there is nothing to forget.
    pub(crate) fn is_empty(&self) -> bool {
        self.products.is_empty()
            && self.locks.is_empty()
            && self.transfers.is_empty()
            && self.kycs.is_empty()
            && self.reserves.is_empty()
            && self.tips.is_empty()
            && self.pickups.is_empty()
            && self.webhooks.is_empty()
            && self.pending.is_empty()
            && self.templates.is_empty()
            && self.tokens.is_empty()
    }
}

/// A request that is sent when something happens.
pub(crate) type Hook = (PendingWebhookKey, PendingWebhookRow);

fn plan_edit<T: Table>(by_instance: u8, key: &T::Key, instance: &String, plan: &mut Plan) {
    plan.row::<T>(key.clone());
    plan.group::<T>(by_instance, instance);
    plan.row::<Instances>(InstanceKey::new(instance));
}

/// Edits one of the objects that an instance has by an index, of which there are at most so many.
fn edit<T: Table>(
    rows: &mut WorkingSet,
    (by_instance, max): (u8, usize),
    key: &T::Key,
    instance: &String,
    edit: &Edit<T::Row>,
) -> Result<(), Refusal>
where
    T::Row: Clone + PartialEq,
{
    working_shop(rows, instance)?;
    match (edit, rows.get::<T>(key)) {
        (Edit::Create(row), None) => {
            if rows.group::<T>(by_instance, instance).len() >= max {
                return Err(Refusal::TooMany(T::DEF.name));
            }
            rows.insert::<T>(key, row.clone());
        }
        (Edit::Create(row), Some(known)) if known == row => {}
        (Edit::Create(_), Some(_)) => return Err(Refusal::NameTaken),
        (Edit::Change(_) | Edit::Delete, None) => return Err(Refusal::NameUnknown),
        (Edit::Change(row), Some(_)) => rows.update::<T>(key, row.clone()),
        (Edit::Delete, Some(_)) => rows.delete::<T>(key),
    }
    Ok(())
}

/// Requires an instance that was not deleted, and depends on it.
pub(super) fn working_shop(rows: &mut WorkingSet, instance: &str) -> Result<(), Refusal> {
    let key = InstanceKey::new(instance);
    match rows.get::<Instances>(&key) {
        None => return Err(Refusal::InstanceUnknown),
        Some(found) if found.merchant_priv.is_none() => return Err(Refusal::InstanceDeleted),
        Some(_) => rows.depend_on::<Instances>(&key),
    }
    Ok(())
}

pub(super) fn plan_hooks(hooks: &[Hook], plan: &mut Plan) {
    for (key, _) in hooks {
        plan.row::<PendingWebhooks>(key.clone());
    }
}

/// Lets requests be sent, each at most once.
pub(super) fn trigger(rows: &mut WorkingSet, hooks: &[Hook]) {
    for (key, row) in hooks {
        if rows.get::<PendingWebhooks>(key).is_none() {
            rows.insert::<PendingWebhooks>(key, row.clone());
        }
    }
}
