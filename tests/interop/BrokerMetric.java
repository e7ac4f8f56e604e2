// SPDX-License-Identifier: Apache-2.0
import com.sun.tools.attach.VirtualMachine;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/** Prints an attribute of an MBean of a Java process on this machine: BrokerMetric PID NAME ATTRIBUTE. */
public class BrokerMetric {
    public static void main(String[] args) throws Exception {
        VirtualMachine machine = VirtualMachine.attach(args[0]);
        try (JMXConnector connector =
                JMXConnectorFactory.connect(new JMXServiceURL(machine.startLocalManagementAgent()))) {
            MBeanServerConnection server = connector.getMBeanServerConnection();
            System.out.println(server.getAttribute(new ObjectName(args[1]), args[2]));
        } finally {
            machine.detach();
        }
    }
}
