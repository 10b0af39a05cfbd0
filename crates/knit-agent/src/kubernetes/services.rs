//! Services and their endpoints, if this node translates Services in place of kube-proxy.

mod addresses;
mod api_server;
mod health_checks;
mod lenient;
mod watched_service;
mod watched_slice;

use knit_engine::Event;
use knit_engine::services::ServiceEvent;
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use self::watched_service::WatchedService;
use self::watched_slice::WatchedSlice;
use super::{Context, informers};

/// Objects with these labels are left to other programs, as kube-proxy does.
const SELECTOR: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";
/// Page size of lists: a page is in memory as a whole.
const PAGE_SIZE: u32 = 500;

/// Watches Services and EndpointSlices. While the API server is unavailable, the last known ones stay in force.
pub(super) async fn run(context: Context) {
    tokio::join!(
        api_server::run(&context),
        watch_services(&context),
        watch_slices(&context),
        health_checks::run(&context)
    );
}

async fn watch_services(context: &Context) {
    let handle = |seen: WatchUpdate<WatchedService>| {
        submit(context, service_event(seen));
    };
    let api: Api<WatchedService> = Api::all(context.client.clone());
    informers::watch(&context.handle, "services", api, config(), handle).await;
}

async fn watch_slices(context: &Context) {
    let handle = |seen: WatchUpdate<WatchedSlice>| {
        submit(context, slice_event(seen));
    };
    let api: Api<WatchedSlice> = Api::all(context.client.clone());
    informers::watch(&context.handle, "endpointslices", api, config(), handle).await;
}

fn config() -> watcher::Config {
    watcher::Config::default().labels(SELECTOR).page_size(PAGE_SIZE)
}

fn submit(context: &Context, event: ServiceEvent) {
    context.handle.submit(Event::Services(event));
    context.services_changed.notify_one();
}

fn service_event(seen: WatchUpdate<WatchedService>) -> ServiceEvent {
    match seen {
        WatchUpdate::Listed(all) => {
            ServiceEvent::ServicesListed(all.into_iter().filter_map(WatchedService::into_service).collect())
        }
        WatchUpdate::Applied(one) => {
            let key = one.key();
            // An ExternalName or headless Service has no addresses of its own.
            one.into_service().map_or(ServiceEvent::ServiceDeleted(key), |service| {
                ServiceEvent::ServiceApplied(Box::new(service))
            })
        }
        WatchUpdate::Deleted(one) => ServiceEvent::ServiceDeleted(one.key()),
    }
}

fn slice_event(seen: WatchUpdate<WatchedSlice>) -> ServiceEvent {
    match seen {
        WatchUpdate::Listed(all) => {
            ServiceEvent::SlicesListed(all.into_iter().filter_map(WatchedSlice::into_slice).collect())
        }
        WatchUpdate::Applied(one) => {
            let key = one.key();
            one.into_slice()
                .map_or(ServiceEvent::SliceDeleted(key), |slice| ServiceEvent::SliceApplied(Box::new(slice)))
        }
        WatchUpdate::Deleted(one) => ServiceEvent::SliceDeleted(one.key()),
    }
}
