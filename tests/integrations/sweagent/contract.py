"""What we rely on in SWE-agent 1.1, as data: its hooks, and when it calls them.

Its releases are not on the index, so `stand_in` plays this contract where it cannot be had; where it can,
`test_contract` holds the contract against the source itself.
"""

HOOKS = {
    "AgentHook": (
        "sweagent.agent.hooks.abstract.AbstractAgentHook",
        {
            "on_init": {"agent"},
            "on_run_start": set(),
            "on_step_start": set(),
            "on_actions_generated": {"step"},
            "on_action_started": {"step"},
            "on_action_executed": {"step"},
            "on_step_done": {"step", "info"},
            "on_run_done": {"trajectory", "info"},
            "on_setup_attempt": set(),
            "on_model_query": {"messages", "agent"},
            "on_tools_installation_started": set(),
            "on_setup_done": set(),
        },
    ),
    "EnvHook": (
        "sweagent.environment.hooks.abstract.EnvHook",
        {
            "on_init": {"env"},
            "on_copy_repo_started": {"repo"},
            "on_start_deployment": set(),
            "on_install_env_started": set(),
            "on_close": set(),
            "on_environment_startup": set(),
        },
    ),
    "RunHook": (
        "sweagent.run.hooks.abstract.RunHook",
        {
            "on_init": {"run"},
            "on_start": set(),
            "on_end": set(),
            "on_instance_start": {"index", "env", "problem_statement"},
            "on_instance_skipped": set(),
            "on_instance_completed": {"result"},
        },
    ),
}
"""Class of ours → their base class and what it is called with, by keyword."""

ATTRIBUTES = {
    "sweagent.run.run_single.RunSingle.__init__": {"env", "agent", "problem_statement"},
    "sweagent.run.run_batch.RunBatch.__init__": {"instances", "agent_config", "num_workers"},
    "sweagent.environment.swe_env.SWEEnv.__init__": {"deployment", "repo"},
    "sweagent.run.common.BasicCLI.__init__": {"config_type", "help_text"},
    "swerex.deployment.docker.DockerDeployment.container_name": set(),
    "swerex.deployment.config.DockerDeploymentConfig.docker_args": set(),
    "swerex.runtime.abstract.AbstractRuntime.run_in_session": {"action"},
    "swerex.runtime.abstract.BashAction.command": set(),
}
"""What else is used: parameters that are attributes of the same name, properties, fields."""
