//! The names and numbers of the wire, written by hand: a change of `proto/` that breaks plugins and clients
//! of the published files fails here.

use prost::Message;

use super::DESCRIPTORS;

/// The wire-related part of a `FileDescriptorSet`. The type in prost-types drops the option for secrets.
#[derive(Message)]
struct Files {
    #[prost(message, repeated, tag = "1")]
    files: Vec<File>,
}

#[derive(Message)]
struct File {
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<Type>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<Enum>,
    #[prost(message, repeated, tag = "6")]
    services: Vec<Service>,
    #[prost(message, repeated, tag = "7")]
    extensions: Vec<Field>,
    #[prost(message, optional, tag = "8")]
    options: Option<FileOptions>,
}

#[derive(Message)]
struct FileOptions {
    #[prost(string, tag = "11")]
    go_package: String,
}

#[derive(Message)]
struct Type {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    fields: Vec<Field>,
    #[prost(message, repeated, tag = "3")]
    messages: Vec<Type>,
    #[prost(message, repeated, tag = "4")]
    enums: Vec<Enum>,
    #[prost(message, optional, tag = "7")]
    options: Option<TypeOptions>,
}

#[derive(Message)]
struct TypeOptions {
    #[prost(bool, tag = "7")]
    map_entry: bool,
}

#[derive(Message)]
struct Field {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    extended: String,
    #[prost(int32, tag = "3")]
    number: i32,
    #[prost(int32, tag = "4")]
    label: i32,
    #[prost(int32, tag = "5")]
    kind: i32,
    #[prost(string, tag = "6")]
    type_name: String,
    #[prost(message, optional, tag = "8")]
    options: Option<FieldOptions>,
}

#[derive(Message)]
struct FieldOptions {
    #[prost(bool, tag = "71059")]
    cmi_secret: bool,
}

#[derive(Message)]
struct Enum {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    values: Vec<EnumValue>,
}

#[derive(Message)]
struct EnumValue {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    number: i32,
}

#[derive(Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    methods: Vec<Method>,
}

#[derive(Message)]
struct Method {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    request: String,
    #[prost(string, tag = "3")]
    response: String,
    #[prost(bool, tag = "5")]
    client_streams: bool,
    #[prost(bool, tag = "6")]
    server_streams: bool,
}

impl File {
    /// A line for each method, message, enum and extension.
    fn lines(&self) -> Vec<String> {
        let package = &self.package;
        let extensions = self
            .extensions
            .iter()
            .map(|each| format!("extend {}: {}", each.extended, each.shown(&[])));
        let methods = self.services.iter().flat_map(|service| {
            service.methods.iter().map(move |method| {
                assert!(!method.client_streams && !method.server_streams, "{method:?}");
                let (request, response) = (&method.request, &method.response);
                format!("/{package}.{}/{} {request} {response}", service.name, method.name)
            })
        });
        let enums = self.enums.iter().map(|each| each.line(""));
        let messages = self.messages.iter().flat_map(|each| each.lines(""));
        extensions.chain(methods).chain(enums).chain(messages).collect()
    }
}

impl Type {
    fn lines(&self, outer: &str) -> Vec<String> {
        let name = format!("{outer}{}", self.name);
        let fields: Vec<_> = self
            .fields
            .iter()
            .map(|field| field.shown(&self.messages))
            .collect();
        let mut lines = vec![format!("{name}: {}", fields.join(", "))];
        let inner = format!("{name}.");
        lines.extend(self.enums.iter().map(|each| each.line(&inner)));
        let messages = self.messages.iter().filter(|each| !each.is_map_entry());
        lines.extend(messages.flat_map(|each| each.lines(&inner)));
        lines
    }

    fn is_map_entry(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.map_entry)
    }
}

impl Field {
    /// Type, name and number, as in a file. `beside` are the messages nested in the field's message.
    fn shown(&self, beside: &[Type]) -> String {
        let name = self.type_name.rsplit('.').next();
        let mut entries = beside.iter().filter(|each| each.is_map_entry());
        let entry = entries.find(|each| name == Some(&each.name));
        let kind = match entry {
            Some(entry) => {
                let kinds: Vec<_> = entry.fields.iter().map(Self::kind).collect();
                format!("map<{}>", kinds.join(" "))
            }
            None if self.label == 3 => format!("repeated {}", self.kind()),
            None => self.kind().to_owned(),
        };
        let is_secret = self.options.as_ref().is_some_and(|options| options.cmi_secret);
        let secret = if is_secret { " secret" } else { "" };
        format!("{kind} {} {}{secret}", self.name, self.number)
    }

    fn kind(&self) -> &str {
        match self.kind {
            5 => "int32",
            8 => "bool",
            9 => "string",
            11 | 14 => &self.type_name,
            12 => "bytes",
            other => panic!("{} is of type {other}, which no message has had", self.name),
        }
    }
}

impl Enum {
    fn line(&self, outer: &str) -> String {
        let values = self.values.iter();
        let values: Vec<_> = values
            .map(|value| format!("{} {}", value.name, value.number))
            .collect();
        format!("enum {outer}{}: {}", self.name, values.join(", "))
    }
}

#[track_caller]
fn assert_is(package: &str, expected: &[&str]) {
    let all = Files::decode(DESCRIPTORS).unwrap();
    let file = all.files.into_iter().find(|file| file.package == package);
    assert_eq!(file.unwrap().lines(), expected);
}

/// CMI-153
#[test]
fn the_published_interface_has_its_published_names_and_numbers() {
    assert_is(
        "cmi.v1",
        &[
            "extend .google.protobuf.FieldOptions: bool cmi_secret 71059",
            "/cmi.v1.Identity/GetPluginInfo .cmi.v1.GetPluginInfoRequest .cmi.v1.GetPluginInfoResponse",
            "/cmi.v1.Identity/GetPluginCapabilities .cmi.v1.GetPluginCapabilitiesRequest \
             .cmi.v1.GetPluginCapabilitiesResponse",
            "/cmi.v1.Identity/Probe .cmi.v1.ProbeRequest .cmi.v1.ProbeResponse",
            "/cmi.v1.Machine/CreateMachine .cmi.v1.CreateMachineRequest .cmi.v1.CreateMachineResponse",
            "/cmi.v1.Machine/DeleteMachine .cmi.v1.DeleteMachineRequest .cmi.v1.DeleteMachineResponse",
            "/cmi.v1.Machine/GetMachineStatus .cmi.v1.GetMachineStatusRequest \
                .cmi.v1.GetMachineStatusResponse",
            "/cmi.v1.Machine/ListMachines .cmi.v1.ListMachinesRequest .cmi.v1.ListMachinesResponse",
            "/cmi.v1.Machine/ShutDownMachine .cmi.v1.ShutDownMachineRequest .cmi.v1.ShutDownMachineResponse",
            "/cmi.v1.Machine/GetVolumeIDs .cmi.v1.GetVolumeIDsRequest .cmi.v1.GetVolumeIDsResponse",
            "GetPluginInfoRequest: ",
            "GetPluginInfoResponse: string name 1, string version 2, map<string string> manifest 3",
            "GetPluginCapabilitiesRequest: ",
            "GetPluginCapabilitiesResponse: repeated .cmi.v1.PluginCapability capabilities 1",
            "PluginCapability: .cmi.v1.PluginCapability.RPC rpc 1",
            "PluginCapability.RPC: .cmi.v1.PluginCapability.RPC.Type type 1",
            "enum PluginCapability.RPC.Type: UNKNOWN 0, CREATE_MACHINE 1, DELETE_MACHINE 2, \
                GET_MACHINE_STATUS 3, LIST_MACHINES 4, SHUTDOWN_MACHINE 5, GET_VOLUME_IDS 6",
            "ProbeRequest: ",
            "ProbeResponse: .google.protobuf.BoolValue ready 1",
            "CreateMachineRequest: string MachineName 1, bytes ProviderSpec 2, map<string bytes> Secrets 3 \
                secret, bytes LastKnownState 4",
            "CreateMachineResponse: string ProviderID 1, string NodeName 2, bytes LastKnownState 3",
            "DeleteMachineRequest: string MachineName 1, bytes ProviderSpec 2, map<string bytes> Secrets 3 \
                secret, string ProviderID 4, bytes LastKnownState 5",
            "DeleteMachineResponse: bytes LastKnownState 1",
            "GetMachineStatusRequest: string MachineName 1, bytes ProviderSpec 2, map<string bytes> Secrets \
                3 secret, string ProviderID 4",
            "GetMachineStatusResponse: string ProviderID 1, string NodeName 2",
            "ListMachinesRequest: bytes ProviderSpec 1, map<string bytes> Secrets 2 secret",
            "ListMachinesResponse: map<string string> MachineList 1",
            "ShutDownMachineRequest: string MachineName 1, bytes ProviderSpec 2, map<string bytes> Secrets 3 \
                secret, string ProviderID 4, bytes LastKnownState 5",
            "ShutDownMachineResponse: bytes LastKnownState 1",
            "GetVolumeIDsRequest: bytes PVSpecList 1",
            "GetVolumeIDsResponse: repeated string VolumeIDs 1",
        ],
    );
}

/// Drivers that are out there are built from it.
#[test]
fn the_extension_keeps_its_names_and_numbers() {
    assert_is(
        "capcmi.v1",
        &[
            "/capcmi.v1.MachineExtension/GetExtensionCapabilities .capcmi.v1.GetExtensionCapabilitiesRequest \
             .capcmi.v1.GetExtensionCapabilitiesResponse",
            "/capcmi.v1.MachineExtension/InitializeMachine .capcmi.v1.InitializeMachineRequest \
                .capcmi.v1.Machine",
            "/capcmi.v1.MachineExtension/UpdateMachine .capcmi.v1.UpdateMachineRequest \
             .capcmi.v1.UpdateMachineResponse",
            "/capcmi.v1.MachineExtension/GenerateMachineClassForMigration \
             .capcmi.v1.GenerateMachineClassForMigrationRequest \
             .capcmi.v1.GenerateMachineClassForMigrationResponse",
            "/capcmi.v1.MachineExtension/GetMachine .capcmi.v1.GetMachineRequest .capcmi.v1.Machine",
            "/capcmi.v1.MachineExtension/ListMachinesPaged .capcmi.v1.ListMachinesPagedRequest \
             .capcmi.v1.ListMachinesPagedResponse",
            "/capcmi.v1.MachineExtension/ListZones .capcmi.v1.ListZonesRequest .capcmi.v1.ListZonesResponse",
            "/capcmi.v1.MachineExtension/DescribeClass .capcmi.v1.DescribeClassRequest \
             .capcmi.v1.DescribeClassResponse",
            "/capcmi.v1.MachineExtension/RestartMachine .capcmi.v1.RestartMachineRequest \
             .capcmi.v1.RestartMachineResponse",
            "/capcmi.v1.MachineExtension/GetConsole .capcmi.v1.GetConsoleRequest \
             .capcmi.v1.GetConsoleResponse",
            "enum PowerState: POWER_STATE_UNSPECIFIED 0, STARTING 1, RUNNING 2, STOPPING 3, STOPPED 4, \
                FAILED 5",
            "GetExtensionCapabilitiesRequest: ",
            "GetExtensionCapabilitiesResponse: repeated .capcmi.v1.GetExtensionCapabilitiesResponse.Call \
                calls 1, bool zones 2, .google.protobuf.Duration consistency_window 3, string tag_path 4, \
             repeated string hot_updatable 5, bytes provider_spec_schema 6, bool list_has_state 8, \
             string address_path 9",
            "enum GetExtensionCapabilitiesResponse.Call: CALL_UNSPECIFIED 0, INITIALIZE_MACHINE 1, \
                UPDATE_MACHINE 2, GENERATE_MACHINE_CLASS_FOR_MIGRATION 3, GET_MACHINE 4, LIST_MACHINES_PAGED \
                5, LIST_ZONES 6, DESCRIBE_CLASS 7, RESTART_MACHINE 8, GET_CONSOLE 9",
            "Machine: string provider_id 1, string node_name 2, repeated .capcmi.v1.MachineAddress addresses \
                3, .capcmi.v1.PowerState power_state 4, string failure_domain 5, bytes last_known_state 6",
            "MachineAddress: .capcmi.v1.MachineAddress.Type type 1, string address 2",
            "enum MachineAddress.Type: TYPE_UNSPECIFIED 0, HOSTNAME 1, EXTERNAL_IP 2, INTERNAL_IP 3, \
                EXTERNAL_DNS 4, INTERNAL_DNS 5",
            "InitializeMachineRequest: string machine_name 1, bytes provider_spec 2, \
             map<string bytes> secrets 3 secret, string provider_id 4, bytes last_known_state 5",
            "UpdateMachineRequest: string machine_name 1, string provider_id 2, bytes \
                last_applied_provider_spec 3, bytes provider_spec 4, map<string bytes> secrets 5 secret, \
                bytes last_known_state 6",
            "UpdateMachineResponse: ",
            "GenerateMachineClassForMigrationRequest: bytes provider_specific_machine_class 1, \
             bytes machine_class 2, string class_api_group 3, string class_kind 4",
            "GenerateMachineClassForMigrationResponse: bytes machine_class 1",
            "GetMachineRequest: string machine_name 1, bytes provider_spec 2, map<string bytes> secrets 3 \
                secret, string provider_id 4",
            "ListMachinesPagedRequest: bytes provider_spec 1, map<string bytes> secrets 2 secret, int32 \
                page_size 3, string page_token 4",
            "ListMachinesPagedResponse: repeated .capcmi.v1.ListMachinesPagedResponse.ListedMachine machines \
                1, string next_page_token 2",
            "ListMachinesPagedResponse.ListedMachine: string provider_id 1, string machine_name 2, string \
                cluster_id 3, string machine_id 4, .google.protobuf.Timestamp created_at 5, repeated \
                .capcmi.v1.MachineAddress addresses 6, .capcmi.v1.PowerState power_state 7",
            "ListZonesRequest: bytes provider_spec 1, map<string bytes> secrets 2 secret",
            "ListZonesResponse: repeated .capcmi.v1.ListZonesResponse.Zone zones 1",
            "ListZonesResponse.Zone: string name 1, bool control_plane 2, map<string string> attributes 3",
            "DescribeClassRequest: bytes provider_spec 1, map<string bytes> secrets 2 secret",
            "DescribeClassResponse: map<string string> capacity 1, string architecture 2, string \
                operating_system 3",
            "RestartMachineRequest: string machine_name 1, bytes provider_spec 2, \
             map<string bytes> secrets 3 secret, string provider_id 4, bytes last_known_state 5",
            "RestartMachineResponse: ",
            "GetConsoleRequest: string machine_name 1, bytes provider_spec 2, \
             map<string bytes> secrets 3 secret, string provider_id 4",
            "GetConsoleResponse: bytes output 1",
        ],
    );
}

/// protoc-gen-go rejects an import path without a dot or a slash. Go ends a program if two of its files
/// extend the same message with the same number: the files of CSI use 1059 and 1060. The numbers from 50000
/// to 99999 are free for private use.
#[test]
fn the_files_can_be_used_in_go_also_beside_those_of_csi() {
    let all = Files::decode(DESCRIPTORS).unwrap();
    let ours: Vec<_> = all
        .files
        .iter()
        .filter(|file| !file.package.starts_with("google."))
        .collect();
    assert_eq!(ours.len(), 2);
    for file in ours {
        let package = &file.options.as_ref().unwrap().go_package;
        assert!(
            package.contains('/') && package.contains(';'),
            "{}: `{package}`",
            file.package
        );
        for extension in &file.extensions {
            assert!((50_000..=99_999).contains(&extension.number), "{extension:?}");
        }
    }
}
