//! Lists in pages: the extension's ListMachinesPaged.

use std::num::NonZeroU32;

use super::field::{self, Field, FieldError, FieldProblem, NAME, PLACE};
use super::machine_extension::{address_messages, addresses, power_state, power_state_number};
use crate::proto::capcmi::v1::{
    ListMachinesPagedRequest, ListMachinesPagedResponse, list_machines_paged_response,
};
use cmi_driver::{
    Driver, ListMachinesRequest, ListedMachine, MachineClass, Operation, ProviderId, ProviderSpec, Request,
};

/// The most bytes of a page token.
const TOKEN: usize = 1024;

/// The server's token for the next page; opaque to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageToken(pub String);

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRequest {
    /// The request for the whole list.
    pub list: ListMachinesRequest,
    /// The most machines; `None` lets the server choose.
    pub size: Option<NonZeroU32>,
    /// The token from the previous page; `None` for the first.
    pub token: Option<PageToken>,
}

/// The machines of a page, and the token of the next page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachinePage {
    /// Machines.
    pub machines: Vec<ListedMachine>,
    /// The token for the next page; `None` on the last.
    pub next: Option<PageToken>,
}

impl PageToken {
    fn read(field: Field, text: String) -> Result<Option<Self>, FieldError> {
        Ok(field.optional_text(text, TOKEN)?.map(Self))
    }

    fn write(token: Option<Self>) -> String {
        token.map_or_else(String::new, |token| token.0)
    }
}

impl Request for PageRequest {
    const OPERATION: Operation = Operation::ListMachines;
    type Response = MachinePage;

    fn class(&self) -> Option<&MachineClass> {
        self.list.class()
    }

    async fn send(self, driver: &dyn Driver) -> cmi_driver::Result<MachinePage> {
        let place = self.place().map_err(|error| error.in_request())?;
        Ok(place.cut(driver.list_machines(self.list).await?))
    }
}

impl From<PageRequest> for ListMachinesPagedRequest {
    fn from(request: PageRequest) -> Self {
        let (provider_spec, secrets) = field::class_fields(request.list.class);
        Self {
            provider_spec,
            secrets,
            page_size: request
                .size
                .map_or(0, |size| i32::try_from(size.get()).unwrap_or(i32::MAX)),
            page_token: PageToken::write(request.token),
        }
    }
}

impl TryFrom<ListMachinesPagedRequest> for PageRequest {
    type Error = FieldError;

    fn try_from(request: ListMachinesPagedRequest) -> Result<Self, FieldError> {
        let size = u32::try_from(request.page_size)
            .map_err(|_| Field("page_size").wrong(FieldProblem::Malformed("is negative")))?;
        Ok(Self {
            list: ListMachinesRequest {
                class: MachineClass {
                    provider_spec: ProviderSpec(Field("provider_spec").object(&request.provider_spec)?),
                    secrets: Field("secrets").secrets(request.secrets)?,
                },
            },
            size: NonZeroU32::new(size),
            token: PageToken::read(Field("page_token"), request.page_token)?,
        })
    }
}

impl From<MachinePage> for ListMachinesPagedResponse {
    fn from(page: MachinePage) -> Self {
        let machines = page.machines.into_iter();
        Self {
            machines: machines
                .map(|machine| list_machines_paged_response::ListedMachine {
                    provider_id: machine.provider_id.to_string(),
                    machine_name: machine.machine_name,
                    cluster_id: machine.cluster_id.unwrap_or_default(),
                    machine_id: machine.machine_id.unwrap_or_default(),
                    created_at: machine.created_at.map(field::timestamp_message),
                    addresses: address_messages(machine.addresses),
                    power_state: power_state_number(machine.power_state),
                })
                .collect(),
            next_page_token: PageToken::write(page.next),
        }
    }
}

impl TryFrom<ListMachinesPagedResponse> for MachinePage {
    type Error = FieldError;

    fn try_from(response: ListMachinesPagedResponse) -> Result<Self, FieldError> {
        let machines = response.machines.into_iter();
        Ok(Self {
            machines: machines
                .map(|machine| {
                    let power_state = power_state(machine.power_state());
                    Ok(ListedMachine {
                        power_state,
                        provider_id: Field("machines.provider_id").provider_id(&machine.provider_id)?,
                        // Empty when the back end has lost it (DRV-36).
                        machine_name: Field("machines.machine_name")
                            .optional_text(machine.machine_name, NAME)?
                            .unwrap_or_default(),
                        cluster_id: Field("machines.cluster_id").optional_text(machine.cluster_id, PLACE)?,
                        machine_id: Field("machines.machine_id").optional_text(machine.machine_id, PLACE)?,
                        created_at: Field("machines.created_at").timestamp(machine.created_at)?,
                        addresses: addresses(Field("machines.addresses.address"), machine.addresses)?,
                    })
                })
                .collect::<Result<_, FieldError>>()?,
            next: PageToken::read(Field("next_page_token"), response.next_page_token)?,
        })
    }
}

/// Where a page of a server's begins, and how long it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagePlace {
    after: Option<ProviderId>,
    size: usize,
}

/// The most machines of a page.
const MAX_PAGE: u32 = 1000;
/// The most bytes of a page, unless it has a single machine: less than gRPC's usual limit of 4 MiB.
const MAX_PAGE_BYTES: usize = 3 << 20;
/// The prefix of this server's tokens.
const TOKEN_PREFIX: &str = "after:";

impl PageRequest {
    /// Returns the start of the page.
    ///
    /// # Errors
    /// The token does not come from [`PagePlace::cut`].
    pub fn place(&self) -> Result<PagePlace, FieldError> {
        let foreign = || Field("page_token").wrong(FieldProblem::Malformed("is not a token of this plugin"));
        let after = self.token.as_ref().map(|PageToken(token)| {
            let id = token.strip_prefix(TOKEN_PREFIX).ok_or_else(foreign)?;
            id.parse().map_err(|_| foreign())
        });
        let size = self.size.map_or(MAX_PAGE, |size| size.get().min(MAX_PAGE));
        Ok(PagePlace {
            after: after.transpose()?,
            size: usize::try_from(size).unwrap_or(usize::MAX),
        })
    }
}

impl PagePlace {
    /// Cuts the page out of all machines. A machine that appears or disappears between two pages moves no
    /// other.
    pub fn cut(self, mut machines: Vec<ListedMachine>) -> MachinePage {
        machines.retain(|machine| {
            self.after
                .as_ref()
                .is_none_or(|after| machine.provider_id > *after)
        });
        machines.sort_unstable_by(|one, other| one.provider_id.cmp(&other.provider_id));
        let size = self.size.min(fitting(&machines)).max(1);
        let more = machines.len() > size;
        machines.truncate(size);
        let last = machines.last().filter(|_| more);
        MachinePage {
            next: last.map(|last| PageToken(format!("{TOKEN_PREFIX}{}", last.provider_id))),
            machines,
        }
    }
}

/// Returns how many of the machines fit into a page.
fn fitting(machines: &[ListedMachine]) -> usize {
    let mut bytes = 0;
    machines
        .iter()
        .take_while(|machine| {
            bytes += encoded_bytes(machine);
            bytes <= MAX_PAGE_BYTES
        })
        .count()
}

/// An upper bound of a machine's bytes in the message.
fn encoded_bytes(machine: &ListedMachine) -> usize {
    /// Tags, lengths and numbers of an entry or an address.
    const OVERHEAD: usize = 64;
    let texts = [&machine.cluster_id, &machine.machine_id];
    let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
    let addresses = machine.addresses.iter();
    let addresses = addresses
        .map(|address| OVERHEAD + address.address.len())
        .sum::<usize>();
    OVERHEAD + machine.provider_id.as_str().len() + machine.machine_name.len() + texts + addresses
}
