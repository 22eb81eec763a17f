//! The table of driver calls. Code that is alike for all calls is generated from it.

/// Passes a row for each call of [`Driver`](crate::Driver) that has a request to the macro `$callback`, after
/// `$arguments`. A new call is a method of the trait and a row here, in the order of a machine's life:
///
/// * the documentation, the variant of [`Operation`](crate::Operation) and the name in the specifications,
/// * the method, its request and its response,
/// * `required`, or `optional` for a call that a driver declares in its capabilities,
/// * `writes`, or `reads` for a call that changes no VM,
/// * the path in the request to the class whose secrets the call uses; empty for a request without a class.
#[macro_export]
macro_rules! for_each_call {
    ($($callback:ident)::+ $([$($arguments:tt)*])?) => {
        $($callback)::+! { $([$($arguments)*])?
            /// Makes or adopts a VM. Required.
            CreateMachine "CreateMachine"
                create_machine(CreateMachineRequest) -> Machine, required, writes, [machine.class];
            /// Finishes a VM that exists.
            InitializeMachine "InitializeMachine"
                initialize_machine(InitializeMachineRequest) -> Machine, optional, writes, [machine.class];
            /// Deletes a VM. Required.
            DeleteMachine "DeleteMachine"
                delete_machine(DeleteMachineRequest) -> DeleteMachineResponse,
                required, writes, [machine.class];
            /// Reads a VM.
            GetMachineStatus "GetMachineStatus"
                get_machine_status(GetMachineStatusRequest) -> Machine, optional, reads, [machine.class];
            /// Reads all VMs of a cluster.
            ListMachines "ListMachines"
                list_machines(ListMachinesRequest) -> Vec<ListedMachine>, optional, reads, [class];
            /// Stops the guest.
            ShutDownMachine "ShutDownMachine"
                shut_down_machine(ShutDownMachineRequest) -> ShutDownMachineResponse,
                optional, writes, [machine.class];
            /// Changes hot-updatable fields of a VM.
            UpdateMachine "UpdateMachine"
                update_machine(UpdateMachineRequest) -> (), optional, writes, [machine.class];
            /// Restarts a VM that exists.
            RestartMachine "RestartMachine"
                restart_machine(RestartMachineRequest) -> (), optional, writes, [machine.class];
            /// Reads the latest console output of a VM.
            GetConsole "GetConsole"
                get_console(GetConsoleRequest) -> Console, optional, reads, [machine.class];
            /// Reads volume ids out of PersistentVolume specs.
            GetVolumeIds "GetVolumeIDs"
                get_volume_ids(GetVolumeIdsRequest) -> Vec<String>, optional, reads, [];
            /// Converts a class of the back end's own kind.
            GenerateMachineClassForMigration "GenerateMachineClassForMigration"
                generate_machine_class_for_migration(GenerateMachineClassForMigrationRequest)
                -> Map<String, Value>,
                optional, reads, [];
            /// Reads the failure domains of a class.
            ListZones "ListZones"
                list_zones(ListZonesRequest) -> Vec<Zone>, optional, reads, [class];
            /// Reads the resources of one machine of a class.
            DescribeClass "DescribeClass"
                describe_class(DescribeClassRequest) -> ClassDescription, optional, reads, [class];
        }
    };
}

/// Implements [`Driver`](crate::Driver) for a type that treats all calls alike: each
/// [`Request`](crate::Request) is passed to the type's method `call`. The braces hold the methods without a
/// request.
#[macro_export]
macro_rules! forward_calls {
    (impl Driver for $driver:ident { $($own:tt)* }) => {
        $crate::for_each_call! { $crate::__forward [$driver { $($own)* }] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __forward {
    ([$driver:ident { $($own:tt)* }] $(
        $(#[$doc:meta])* $operation:ident $name:literal
            $method:ident($request:ident) -> $response:ty, $need:ident, $effect:ident, [$($class:ident).*];
    )+) => {
        #[$crate::async_trait]
        impl $crate::Driver for $driver {
            $($own)*

            $(
                async fn $method(
                    &self,
                    request: $crate::$request,
                ) -> $crate::Result<<$crate::$request as $crate::Request>::Response> {
                    self.call(request).await
                }
            )+
        }
    };
}
