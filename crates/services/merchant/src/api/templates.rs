//! Templates of orders, for tills and printed codes: `/private/templates`, and `/templates/$ID` for customers.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use batzen_http::{ClientKey, Head, Method, Request, Response, header};
use batzen_protocol::api::merchant::{
    CreateOrderRequest, CreateOrderResponse, CreateTemplateRequest, TemplateContract, TemplateDetails,
    TemplateForCustomer, TemplateList, TemplateSummary, UseTemplateRequest,
};
use batzen_protocol::{Amount, ErrorCode, Timestamp};
use batzen_service::{Attempts, Rate};
use batzen_store::Store;
use batzen_tables::merchant::{TemplateKey, TemplateRow, Templates};
use serde_json::{Map, json};

use super::core::Core;
use super::products::is_id;
use super::status::wants_page;
use super::table::{Rows, TEXTS_BYTES_MAX, endpoint};
use super::{Answer, Checked, FAILURES, Merchant, Shop, base_url, body, malformed, orders, page, refused};
use crate::rules::{Edit, EditTemplate, Refusal};
use crate::urls;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("instance");
    rows.get("/private/templates", endpoint!(Reader, list_templates), "List templates of orders")
        .gives::<TemplateList>();
    rows.post("/private/templates", endpoint!(Owner, create_template), "Add a template")
        .takes::<CreateTemplateRequest>(TEXTS_BYTES_MAX)
        .gives_nothing();
    rows.get("/private/templates/:template", endpoint!(Reader, show_template), "A template")
        .gives::<TemplateDetails>();
    rows.patch("/private/templates/:template", endpoint!(Owner, change_template), "Change a template")
        .takes::<TemplateDetails>(TEXTS_BYTES_MAX)
        .gives_nothing();
    rows.delete("/private/templates/:template", endpoint!(Owner, delete_template), "Delete a template")
        .gives_nothing();
    rows.get(
        "/templates/:template",
        endpoint!(Anyone, offer_template),
        "What a template offers: JSON, or a form for browsers",
    )
    .counted_as("order")
    .gives::<TemplateForCustomer>();
    rows.post("/templates/:template", endpoint!(Anyone, use_template), "A customer makes an order")
        .counted_as("order")
        .takes::<UseTemplateRequest>(TEXTS_BYTES_MAX)
        .gives::<CreateOrderResponse>()
        .answers_empty(303, "A browser's form: to the order's page.");
    rows
}

/// The longest text of a template, in bytes.
const TEXT_BYTES_MAX: usize = 2_048;
/// Orders that all customers of an instance may create: they cost nothing.
const OF_ALL: Rate = Rate { burst: 200, interval: Duration::from_millis(50) };
/// Orders that one of them may create: a fifth, so that it takes several addresses to take those of all others.
const OF_ONE: Rate = Rate { burst: 40, interval: Duration::from_millis(250) };

fn contract_of(row: &TemplateRow) -> Checked<TemplateContract> {
    let broken = |_| Response::error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, "template");
    serde_json::from_str(&row.contract).map_err(broken)
}

/// The orders that customers have created lately.
pub(super) struct Pace {
    of_all: Attempts<String>,
    of_one: Attempts<(String, ClientKey)>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { of_all: Attempts::new(OF_ALL), of_one: Attempts::new(OF_ONE) }
    }
}

impl Pace {
    /// Counts an order, if it is within the limits.
    fn take(&mut self, instance: &str, client: ClientKey, now: Instant) -> bool {
        let instance = instance.to_owned();
        // What the instance refuses does not count for the customer. A proxy on a local socket may not name its clients.
        self.of_all.wait(&instance, now).is_zero()
            && (client == ClientKey::Local || self.of_one.take(&(instance.clone(), client), now))
            && self.of_all.take(&instance, now)
    }
}

fn template_row(core: &Core, details: TemplateDetails) -> Checked<TemplateRow> {
    let TemplateDetails { template_description: description, template_contract: contract } = details;
    if description.len() > TEXT_BYTES_MAX {
        return Err(malformed("template_description"));
    }
    if contract.summary.as_ref().is_some_and(|text| text.is_empty() || text.len() > TEXT_BYTES_MAX) {
        return Err(malformed("summary"));
    }
    contract.amount.map(|amount| core.money(&amount, "amount")).transpose()?;
    let contract = serde_json::to_string(&contract).expect("it has a JSON form");
    Ok(TemplateRow { description, contract })
}

async fn all_templates(core: &Core, shop: &Shop) -> Checked<Vec<(TemplateKey, TemplateRow)>> {
    let id = shop.id.clone();
    let read = move |store: &Store| store.lookup::<Templates>(Templates::BY_INSTANCE, &id);
    let mut all: Vec<_> = core.read(read).await?.into_iter().map(|found| (found.key, found.row)).collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(all)
}

async fn template(core: &Core, shop: &Shop, template_id: &str) -> Checked<TemplateRow> {
    let key = TemplateKey { instance: shop.id.clone(), template_id: template_id.to_owned() };
    let found = core.read(move |store| store.get::<Templates>(&key)).await?;
    Ok(found.ok_or_else(|| refused(&Refusal::NameUnknown, template_id))?.row)
}

async fn list_templates(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, _: &str) -> Answer {
    let templates = all_templates(&app.core, shop).await?.into_iter().map(|(key, row)| TemplateSummary {
        template_id: key.template_id,
        template_description: row.description,
    });
    Ok(Response::json(200, &TemplateList { templates: templates.collect() }))
}

async fn create_template(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let CreateTemplateRequest { template_id, details } = body(request)?;
    if !is_id(&template_id) {
        return Err(malformed("template_id"));
    }
    let edit = Edit::Create(template_row(&app.core, details)?);
    edit_template(&app.core, shop, &template_id, edit).await
}

async fn change_template(
    app: &Arc<Merchant>,
    request: &mut Request,
    shop: &Shop,
    template_id: &str,
) -> Answer {
    let edit = Edit::Change(template_row(&app.core, body(request)?)?);
    edit_template(&app.core, shop, template_id, edit).await
}

async fn delete_template(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, template_id: &str) -> Answer {
    edit_template(&app.core, shop, template_id, Edit::Delete).await
}

async fn edit_template(core: &Core, shop: &Shop, template_id: &str, edit: Edit<TemplateRow>) -> Answer {
    let key = TemplateKey { instance: shop.id.clone(), template_id: template_id.to_owned() };
    core.decide(EditTemplate { key, edit }, template_id).await?;
    Ok(Response::empty(204))
}

async fn show_template(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, template_id: &str) -> Answer {
    let row = template(&app.core, shop, template_id).await?;
    let details =
        TemplateDetails { template_contract: contract_of(&row)?, template_description: row.description };
    Ok(Response::json(200, &details))
}

/// Shows a template to its customer: as JSON, or as a form.
async fn offer_template(
    app: &Arc<Merchant>,
    request: &mut Request,
    shop: &Shop,
    template_id: &str,
) -> Answer {
    let found = template(&app.core, shop, template_id).await;
    if wants_page(request) {
        return match found {
            Ok(row) => {
                let contract = contract_of(&row)?;
                let currency = app.core.config.currency;
                Ok(page::template(&shop.row.name, &contract, currency.as_str()))
            }
            Err(error) if error.status == 404 => Err(page::message(404, "There is no such offer.")),
            Err(error) => Err(error),
        };
    }
    let template_contract = contract_of(&found?)?;
    Ok(Response::json(200, &TemplateForCustomer { template_contract }))
}

/// Counts an order of a customer, if it is within the limits.
fn take_turn(app: &Merchant, instance: &str, head: &Head) -> bool {
    let mut pace = app.template_pace.lock().unwrap_or_else(PoisonError::into_inner);
    pace.take(instance, ClientKey::of(head.client), Instant::now())
}

/// A customer makes an order: JSON gets the order and its token, a browser is sent to the order's page.
async fn use_template(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, template_id: &str) -> Answer {
    let row = template(&app.core, shop, template_id).await?;
    let contract = contract_of(&row)?;
    let kind = request.head.header(header::CONTENT_TYPE).unwrap_or_default();
    let is_form = kind.starts_with("application/x-www-form-urlencoded");
    let wish = if is_form { form(&app.core, &request.body)? } else { body::<UseTemplateRequest>(request)? };
    let choose = |name: &str, fixed: bool, given: bool| match (fixed, given) {
        (true, true) => Err(malformed(name)),
        (false, false) => Err(Response::error(ErrorCode::GENERIC_PARAMETER_MISSING, name)),
        _ => Ok(()),
    };
    choose("summary", contract.summary.is_some(), wish.summary.is_some())?;
    choose("amount", contract.amount.is_some(), wish.amount.is_some())?;
    let amount = contract.amount.or(wish.amount).expect("one of them is there");
    let summary = contract.summary.or(wish.summary).expect("one of them is there");
    if summary.is_empty() || summary.len() > TEXT_BYTES_MAX {
        return Err(malformed("summary"));
    }
    if !take_turn(app, &shop.id, &request.head) {
        return Err(FAILURES.try_later("too many orders"));
    }
    let now = app.core.now();
    let until = match contract.pay_duration.is_forever() {
        true => Timestamp::NEVER,
        false => Timestamp::from_secs(now.saturating_add(contract.pay_duration).as_micros() / 1_000_000),
    };
    let mut order = Map::from_iter([
        ("amount".to_owned(), json!(amount)),
        ("summary".to_owned(), json!(summary)),
        ("pay_deadline".to_owned(), json!(until)),
    ]);
    if contract.minimum_age > 0 {
        order.insert("minimum_age".to_owned(), json!(contract.minimum_age));
    }
    let wish = CreateOrderRequest {
        order,
        refund_delay: None,
        payment_target: None,
        inventory_products: None,
        lock_uuids: None,
        create_token: None,
    };
    let created = orders::make_order(app, &request.head, wish, shop).await?;
    if is_form {
        let base_url = base_url(&request.head, shop)?;
        let url = urls::status_url(&base_url, &created.order_id, &[("token", created.token.as_deref())]);
        return Ok(Response::empty(303).with_header(header::LOCATION, &url));
    }
    Ok(Response::json(200, &created))
}

/// The fields of the form on a template's page. Its amount has no currency.
fn form(core: &Core, bytes: &[u8]) -> Checked<UseTemplateRequest> {
    let mut wish = UseTemplateRequest { summary: None, amount: None };
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("form"))?;
    for (name, value) in Head::local(Method::POST, &format!("/?{text}")).query {
        match name.as_str() {
            "summary" => wish.summary = Some(value),
            "amount" => {
                // In some countries the comma is the decimal point.
                let text = value.trim().replace(',', ".");
                let amount = Amount::parse(&format!("{}:{text}", core.config.currency));
                wish.amount = Some(amount.map_err(|_| malformed("amount"))?);
            }
            _ => {}
        }
    }
    Ok(wish)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn customers_create_orders_no_faster_than_allowed() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let client = |last: u8| ClientKey::of(Some([192, 0, 2, last].into()));
        let mut orders = |shop, last, now| (0..200).filter(|_| pace.take(shop, client(last), now)).count();
        for last in 1..=5 {
            assert_eq!(orders("a", last, now), 40, "others get the rest");
        }
        assert_eq!(orders("a", 6, now), 0);
        assert_eq!(orders("b", 1, now), 40, "each shop has its own limit");
        let later = now + Duration::from_secs(1);
        for last in 1..=5 {
            assert_eq!(orders("a", last, later), 4);
        }
        assert_eq!(orders("a", 6, later), 0);
    }
}
