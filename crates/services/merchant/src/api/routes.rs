//! The endpoints: their methods and paths, and the largest bodies that they take.

use batzen_http::{Method, Routes, Style};

use crate::BODY_BYTES_MAX;

/// The largest body of requests with little content, in bytes.
const SMALL_BODY_BYTES_MAX: usize = 4 << 10;
/// The largest body with an instance's settings, whose logo is an image, in bytes.
const SETTINGS_BYTES_MAX: usize = 512 << 10;

/// The largest body with texts or planchets, in bytes.
const TEXTS_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Home,
    OpenApi,
    WebUi,
    WebUiFile,
    QrCode,
    Metrics,
    Dashboard,
    DashboardPart,
    Health,
    Ready,
    Config,
    ListInstances,
    CreateInstance,
    ShowInstance,
    ChangeInstance,
    DeleteInstance,
    SetAuth,
    ShowSelf,
    ChangeSelf,
    DeleteSelf,
    SetOwnAuth,
    CreateOrder,
    ListOrders,
    ShowOrder,
    Claim,
    Pay,
    Paid,
    OrderStatus,
    ApproveRefund,
    PickUpRefund,
    Abort,
    Forget,
    DeleteOrder,
    ListProducts,
    CreateProduct,
    ShowProduct,
    ChangeProduct,
    DeleteProduct,
    LockProduct,
    ReportTransfer,
    ListTransfers,
    DeleteTransfer,
    Kyc,
    ManagedKyc,
    CreateReserve,
    ListReserves,
    ShowReserve,
    DeleteReserve,
    AuthorizeTip,
    AuthorizeAnyTip,
    ListTips,
    ShowTip,
    TipStatus,
    PickUpTip,
    ListWebhooks,
    CreateWebhook,
    ShowWebhook,
    ChangeWebhook,
    DeleteWebhook,
    ListTemplates,
    CreateTemplate,
    ShowTemplate,
    ChangeTemplate,
    DeleteTemplate,
    OfferTemplate,
    UseTemplate,
    CreateToken,
    ListTokens,
    DeleteToken,
}

/// Values of the label `operation`.
pub(super) const OPERATIONS: [&str; 10] =
    ["order", "claim", "pay", "status", "instance", "refund", "other", "stock", "transfer", "tip"];

impl Endpoint {
    /// The largest body, in bytes, both compressed and decompressed.
    pub(super) const fn body_bytes_max(self) -> usize {
        match self {
            Self::CreateOrder | Self::Pay | Self::Abort => BODY_BYTES_MAX,
            Self::CreateInstance
            | Self::ChangeInstance
            | Self::ChangeSelf
            | Self::CreateProduct
            | Self::ChangeProduct => SETTINGS_BYTES_MAX,
            Self::PickUpTip
            | Self::AuthorizeTip
            | Self::AuthorizeAnyTip
            | Self::CreateWebhook
            | Self::ChangeWebhook
            | Self::CreateTemplate
            | Self::ChangeTemplate
            | Self::UseTemplate
            | Self::Forget => TEXTS_BYTES_MAX,
            _ => SMALL_BODY_BYTES_MAX,
        }
    }

    /// The endpoint's index in [`OPERATIONS`].
    pub(super) const fn operation(self) -> usize {
        match self {
            Self::CreateOrder
            | Self::ListOrders
            | Self::ShowOrder
            | Self::Forget
            | Self::DeleteOrder
            | Self::OfferTemplate
            | Self::UseTemplate => 0,
            Self::Claim => 1,
            Self::Pay | Self::Paid => 2,
            Self::OrderStatus => 3,
            Self::ApproveRefund | Self::PickUpRefund | Self::Abort => 5,
            Self::ListProducts
            | Self::CreateProduct
            | Self::ShowProduct
            | Self::ChangeProduct
            | Self::DeleteProduct
            | Self::LockProduct => 7,
            Self::ReportTransfer | Self::ListTransfers | Self::DeleteTransfer => 8,
            Self::CreateReserve
            | Self::ListReserves
            | Self::ShowReserve
            | Self::DeleteReserve
            | Self::AuthorizeTip
            | Self::AuthorizeAnyTip
            | Self::ListTips
            | Self::ShowTip
            | Self::TipStatus
            | Self::PickUpTip => 9,
            Self::OpenApi
            | Self::WebUi
            | Self::WebUiFile
            | Self::QrCode
            | Self::Home
            | Self::Metrics
            | Self::Dashboard
            | Self::DashboardPart
            | Self::Health
            | Self::Ready
            | Self::Config => 6,
            _ => 4,
        }
    }
}

/// An endpoint, and whether the instance is the first parameter of its path.
pub(super) type Entry = (Endpoint, bool);

pub(super) fn routes() -> Routes<Entry> {
    let empty = Routes::new(Style::ByFirstSegment);
    table().into_iter().fold(empty, |routes, (method, pattern, entry)| routes.route(method, &pattern, entry))
}

/// Method, pattern and endpoint of every route, as `openapi.json` describes them.
pub(super) fn table() -> Vec<(Method, String, Entry)> {
    use Endpoint as E;
    let (get, post, patch, delete) = (Method::GET, Method::POST, Method::PATCH, Method::DELETE);
    let mut table = Vec::new();
    for (method, path, endpoint) in [
        (&get, "/", E::Home),
        (&get, "/openapi.json", E::OpenApi),
        (&get, "/metrics", E::Metrics),
        (&get, "/dashboard", E::Dashboard),
        (&get, "/dashboard/:part", E::DashboardPart),
        (&get, "/health", E::Health),
        (&get, "/ready", E::Ready),
        (&get, "/management/instances", E::ListInstances),
        (&post, "/management/instances", E::CreateInstance),
        (&get, "/management/instances/:id", E::ShowInstance),
        (&patch, "/management/instances/:id", E::ChangeInstance),
        (&delete, "/management/instances/:id", E::DeleteInstance),
        (&post, "/management/instances/:id/auth", E::SetAuth),
        (&get, "/management/instances/:id/kyc", E::ManagedKyc),
    ] {
        table.push((method.clone(), path.to_owned(), (endpoint, false)));
    }
    for (base, has_instance) in [("", false), ("/instances/:instance", true)] {
        for (method, path, endpoint) in [
            (&get, "/webui", E::WebUi),
            (&get, "/webui/:file", E::WebUiFile),
            (&post, "/webui/qr", E::QrCode),
            (&get, "/config", E::Config),
            (&get, "/private", E::ShowSelf),
            (&patch, "/private", E::ChangeSelf),
            (&delete, "/private", E::DeleteSelf),
            (&post, "/private/auth", E::SetOwnAuth),
            (&post, "/private/orders", E::CreateOrder),
            (&get, "/private/orders", E::ListOrders),
            (&get, "/private/orders/:order", E::ShowOrder),
            (&post, "/orders/:order/claim", E::Claim),
            (&post, "/orders/:order/pay", E::Pay),
            (&post, "/orders/:order/paid", E::Paid),
            (&post, "/private/orders/:order/refund", E::ApproveRefund),
            (&post, "/orders/:order/refund", E::PickUpRefund),
            (&post, "/orders/:order/abort", E::Abort),
            (&patch, "/private/orders/:order/forget", E::Forget),
            (&delete, "/private/orders/:order", E::DeleteOrder),
            (&get, "/private/products", E::ListProducts),
            (&post, "/private/products", E::CreateProduct),
            (&get, "/private/products/:product", E::ShowProduct),
            (&patch, "/private/products/:product", E::ChangeProduct),
            (&delete, "/private/products/:product", E::DeleteProduct),
            (&post, "/private/products/:product/lock", E::LockProduct),
            (&post, "/private/transfers", E::ReportTransfer),
            (&get, "/private/transfers", E::ListTransfers),
            (&delete, "/private/transfers/:serial", E::DeleteTransfer),
            (&get, "/private/kyc", E::Kyc),
            (&post, "/private/reserves", E::CreateReserve),
            (&get, "/private/reserves", E::ListReserves),
            (&get, "/private/reserves/:reserve", E::ShowReserve),
            (&delete, "/private/reserves/:reserve", E::DeleteReserve),
            (&post, "/private/reserves/:reserve/authorize-tip", E::AuthorizeTip),
            (&post, "/private/tips", E::AuthorizeAnyTip),
            (&get, "/private/tips", E::ListTips),
            (&get, "/private/tips/:tip", E::ShowTip),
            (&get, "/tips/:tip", E::TipStatus),
            (&post, "/tips/:tip/pickup", E::PickUpTip),
            (&get, "/private/webhooks", E::ListWebhooks),
            (&post, "/private/webhooks", E::CreateWebhook),
            (&get, "/private/webhooks/:webhook", E::ShowWebhook),
            (&patch, "/private/webhooks/:webhook", E::ChangeWebhook),
            (&delete, "/private/webhooks/:webhook", E::DeleteWebhook),
            (&get, "/private/templates", E::ListTemplates),
            (&post, "/private/templates", E::CreateTemplate),
            (&get, "/private/templates/:template", E::ShowTemplate),
            (&patch, "/private/templates/:template", E::ChangeTemplate),
            (&delete, "/private/templates/:template", E::DeleteTemplate),
            (&get, "/templates/:template", E::OfferTemplate),
            (&post, "/templates/:template", E::UseTemplate),
            (&post, "/private/token", E::CreateToken),
            (&get, "/private/tokens", E::ListTokens),
            (&delete, "/private/tokens/:serial", E::DeleteToken),
            (&get, "/orders/:order", E::OrderStatus),
        ] {
            table.push((method.clone(), format!("{base}{path}"), (endpoint, has_instance)));
        }
    }
    table
}
